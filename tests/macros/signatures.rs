//! Signatures that have broken other attribute macros. They must compile without a warning about
//! generated code.
//!
//! cached#114, #217, #230; autometrics#121; axum#587; async-trait#281; tracing#1056, #1615;
//! fastrace#130; rust-lang/rust#60424 (U14). The lints allowed here are about the fixture itself:
//! it has no outside callers, some bodies do not await, and some futures hold the values under
//! test.

#![deny(warnings, clippy::all, clippy::pedantic)]
#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::unused_async,
    clippy::future_not_send
)]

use std::cell::Cell;
use std::fmt::{Debug, Display};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use lock_core::store::MemoryStore;
use lock_core::{Error, FencingToken, Key, KeyPart, LockClient, distributed_lock, key};

type Result<T> = std::result::Result<T, Error>;
type Anything = Box<dyn std::error::Error + Send + Sync>;

// 1. `?`
#[distributed_lock(key = "a:<id>")]
async fn question_mark(id: u64) -> Result<u64> {
    let key = Key::new(id.to_string())?;
    Ok(id + key.as_str().len() as u64)
}

// 2. Early return.
#[distributed_lock(key = "a:<id>")]
async fn early_return(id: u64) -> Result<&'static str> {
    if id == 0 {
        return Ok("none");
    }
    Ok("some")
}

// 3. A type alias for `Result` with one parameter.
#[distributed_lock(key = "a:<id>")]
async fn alias(id: u64) -> Result<()> {
    let _ = id;
    Ok(())
}

// 4. A boxed error.
#[distributed_lock(key = "a:<id>")]
async fn boxed_error(id: &str) -> std::result::Result<u64, Anything> {
    Ok(id.parse::<u64>()?)
}

// 5. A coercion of the body's value.
#[distributed_lock(key = "a:<id>")]
async fn coerced(id: u64) -> Result<Box<dyn Display + Send>> {
    if id == 0 {
        return Ok(Box::new("none"));
    }
    Ok(Box::new(id))
}

// 6. `impl Trait` inside the result.
#[distributed_lock(key = "a:<id>")]
async fn opaque(id: u64) -> Result<impl Display + Send> {
    Ok(format!("<{id}>"))
}

// 7. A closure as the value.
#[distributed_lock(key = "a:<id>")]
async fn closure_returned(id: u64) -> Result<impl Fn(u64) -> u64> {
    Ok(move |more| id + more)
}

// 8. A closure as an argument.
#[distributed_lock(key = "a:<id>")]
async fn closure_taken(id: u64, f: impl Fn(u64) -> u64 + Send) -> Result<u64> {
    Ok(f(id))
}

// 9. A const generic, in the key too.
#[distributed_lock(key = "a:<N>:<ids.len()>")]
async fn const_generic<const N: usize>(ids: [u64; N]) -> Result<usize> {
    Ok(ids.len() + N)
}

// 10. Type parameters with a where clause.
#[distributed_lock(key = "a:<id>")]
async fn where_clause<T, U>(id: T, more: U) -> Result<String>
where
    T: KeyPart + Debug + Send,
    U: Into<String> + Send,
{
    Ok(format!("{id:?}{}", more.into()))
}

// 11. Lifetimes, named and elided.
#[distributed_lock(key = "a:<a>")]
async fn lifetimes<'a, 'b: 'a>(a: &'a str, b: &'b str) -> Result<&'a str> {
    Ok(if a.is_empty() { b } else { a })
}

// 12. `mut` arguments.
#[distributed_lock(key = "a:<id>")]
async fn mutable(mut id: u64, mut text: String) -> Result<String> {
    id += 1;
    text.push_str(&id.to_string());
    Ok(text)
}

// 13. Patterns.
#[distributed_lock(key = "a:<a>:<b>")]
async fn patterns((a, b): (u64, u64), Wrapper(mut c): Wrapper, [d, ..]: [u64; 3]) -> Result<u64> {
    c += d;
    Ok(a + b + c)
}

struct Wrapper(u64);

// 14. Arguments without a name, or with an underscore.
#[distributed_lock(key = "a:<id>")]
async fn unnamed(id: u64, _: String, _unused: Vec<u8>) -> Result<u64> {
    Ok(id)
}

// 15. Arguments with names that the macro might use itself.
#[distributed_lock(key = "a:<key>:<guard>:<result>:<lock>:<client>:<error>:<options>:<entered>")]
#[allow(clippy::too_many_arguments)]
async fn common_names(
    key: u64,
    guard: u64,
    result: u64,
    lock: u64,
    client: u64,
    error: u64,
    options: u64,
    entered: u64,
) -> Result<u64> {
    Ok(key + guard + result + lock + client + error + options + entered)
}

// 16. The body moves an argument that the key uses.
#[distributed_lock(key = "a:<name>")]
async fn moved(name: String) -> Result<Vec<u8>> {
    Ok(name.into_bytes())
}

struct Service {
    client: LockClient,
    tenant: String,
    count: u64,
}

impl Service {
    // 17. `&self`, with fields and methods in the key.
    #[distributed_lock(key = "a:<self.tenant>:<self.tenant().len()>", client = self.client)]
    async fn by_reference(&self, id: u64) -> Result<u64> {
        Ok(self.count + id)
    }

    // 18. `&mut self`.
    #[distributed_lock(key = "a:<self.tenant>", client = self.client)]
    async fn by_mutable_reference(&mut self) -> Result<u64> {
        self.count += 1;
        Ok(self.count)
    }

    // 19. `self`, also `mut`.
    #[distributed_lock(key = "a:<self.tenant>", client = self.client)]
    async fn by_value(mut self) -> Result<String> {
        self.tenant.push('!');
        Ok(self.tenant)
    }

    // 20. `self: Arc<Self>`.
    #[distributed_lock(key = "a:<self.tenant>", client = self.client)]
    async fn by_arc(self: Arc<Self>) -> Result<u64> {
        Ok(self.count)
    }

    // 21. No `self`, and an associated constant in the key.
    #[distributed_lock(key = "<Self::KIND>:<id>")]
    async fn associated(id: u64) -> Result<u64> {
        Ok(id)
    }

    const KIND: &'static str = "service";

    fn tenant(&self) -> &str {
        &self.tenant
    }
}

// 22. An async fn of a trait, native.
trait Native {
    async fn native(&self, id: u64) -> Result<u64>;
}

impl Native for Service {
    #[distributed_lock(key = "a:<id>", client = self.client)]
    async fn native(&self, id: u64) -> Result<u64> {
        Ok(id + self.count)
    }
}

// 23. A body without a final value, and one that only panics.
#[distributed_lock(key = "a:<id>")]
async fn diverging(id: u64) -> Result<u64> {
    loop {
        if id > 0 {
            return Ok(id);
        }
        tokio::task::yield_now().await;
    }
}

#[distributed_lock(key = "a:<id>")]
async fn always_panics(id: u64) -> Result<u64> {
    panic!("no {id}")
}

// 24. Inner attributes.
#[distributed_lock(key = "a:<id>")]
async fn inner_attributes(id: u64) -> Result<u64> {
    #![allow(unused_variables)]
    //! And documentation.
    let unused = id;
    Ok(id)
}

// 25. Items in the body.
#[distributed_lock(key = "a:<id>")]
async fn nested_items(id: u64) -> Result<u64> {
    const STEP: u64 = 2;
    fn step(id: u64) -> u64 {
        id + STEP
    }
    struct Once(u64);
    Ok(Once(step(id)).0)
}

// 26. A future that must be `Send`, and one that cannot be.
#[distributed_lock(key = "a:<id>")]
async fn sendable(id: u64, text: String) -> Result<usize> {
    tokio::task::yield_now().await;
    Ok(text.len() + usize::try_from(id).unwrap_or(0))
}

#[distributed_lock(key = "a:<id>")]
async fn not_sendable(id: u64, cell: &Cell<u64>) -> Result<u64> {
    tokio::task::yield_now().await;
    cell.set(id);
    Ok(cell.get())
}

// 27. `#[async_trait]`.
#[async_trait]
trait Boxed {
    async fn boxed(&self, id: u64, name: String, _: u8) -> Result<String>;

    #[distributed_lock(key = "a:<id>")]
    async fn default_body(&self, id: u64) -> Result<u64>
    where
        Self: Sync,
    {
        Ok(id)
    }
}

#[async_trait]
impl Boxed for Service {
    #[distributed_lock(key = "a:<self.tenant>:<name>", client = self.client)]
    async fn boxed(&self, id: u64, mut name: String, _: u8) -> Result<String> {
        name.push_str(&self.tenant);
        Ok(format!("{name}{id}"))
    }
}

// More: raw identifiers, shadowed names, a future boxed by hand, recursion, macros.
#[distributed_lock(key = "a:<r#type>", lease = r#move)]
async fn raw_identifiers(r#type: u64) -> Result<FencingToken> {
    Ok(r#move.fencing_token())
}

mod shadowed {
    use lock_core::distributed_lock;

    #[allow(dead_code, non_camel_case_types)]
    struct core;
    #[allow(dead_code, non_camel_case_types)]
    struct std;
    #[allow(dead_code)]
    enum Option {
        Some,
        None,
    }
    #[allow(dead_code)]
    enum Never {
        Ok,
        Err,
    }
    #[allow(unused_imports)]
    use Never::{Err, Ok};
    #[allow(unused_imports)]
    use Option::{None, Some};
    #[allow(dead_code)]
    struct Result;
    #[allow(dead_code)]
    fn drop() {}

    #[distributed_lock(key = "a:<id>", ttl = "1s", on_busy = |_| ::core::result::Result::Ok(0))]
    pub(crate) async fn names_of_the_prelude(
        id: u64,
    ) -> ::core::result::Result<u64, lock_core::Error> {
        ::core::result::Result::Ok(id)
    }
}

#[distributed_lock(key = "a:<id>")]
fn boxed_by_hand(id: u64) -> Pin<Box<dyn Future<Output = Result<u64>> + Send>> {
    Box::pin(async move {
        tokio::task::yield_now().await;
        Ok(id)
    })
}

#[distributed_lock(key = "a:<depth>")]
async fn recursive(depth: u64) -> Result<u64> {
    if depth == 0 {
        return Ok(0);
    }
    Ok(1 + Box::pin(recursive(depth - 1)).await?)
}

macro_rules! locked {
    ($name:ident, $argument:ident, $body:expr) => {
        #[distributed_lock(key = "a:<id>:<id.to_string()>")]
        async fn $name(id: u64, $argument: u64) -> Result<u64> {
            let _ = id;
            $body
        }
    };
}

locked!(made_by_a_macro, other, Ok(other));

#[distributed_lock(key = "a", on_error = |_| std::process::exit(1))]
async fn never_returns() -> ! {
    std::process::exit(0)
}

#[distributed_lock(key = "a", on_error = |_| "no")]
async fn opaque_with_handler() -> impl Display {
    "yes"
}

#[distributed_lock(key = "a:<id>", on_error = ignore, on_lost = finish, renew = false)]
async fn nothing(id: u64) {
    drop(id.to_string());
}

fn ignore(_: Error) {}

#[derive(KeyPart, Debug, Clone, Copy)]
struct UserId(u64);

#[derive(KeyPart, Debug)]
struct Named<T> {
    name: T,
}

#[distributed_lock(key = "a:<user>:<name>")]
async fn derived(user: UserId, name: Named<&str>) -> Result<u64> {
    Ok(user.0 + name.name.len() as u64)
}

fn key_expression(user: UserId, name: &str) -> Result<Key> {
    drop(key!("fixed")?);
    key!("a:<user>:{name}:<name.len()>:<<>>")
}

fn assert_send<T: Send>(future: T) -> T {
    future
}

#[tokio::test]
async fn every_signature_compiles_and_runs() -> std::result::Result<(), Anything> {
    let client = LockClient::builder(MemoryStore::new()).build()?;
    let service = || Service { client: client.clone(), tenant: "t".to_owned(), count: 1 };
    let all = async {
        assert_eq!(assert_send(question_mark(1)).await?, 2);
        assert_eq!(early_return(0).await?, "none");
        assert_eq!(early_return(1).await?, "some");
        alias(1).await?;
        assert_eq!(assert_send(boxed_error("7")).await?, 7);
        assert_eq!(coerced(0).await?.to_string(), "none");
        assert_eq!(format!("{}", opaque(1).await?), "<1>");
        assert_eq!(closure_returned(1).await?(2), 3);
        assert_eq!(assert_send(closure_taken(1, |id| id + 1)).await?, 2);
        assert_eq!(const_generic([1, 2]).await?, 4);
        assert_eq!(assert_send(where_clause(1, "x")).await?, "1x");
        assert_eq!(lifetimes("a", "b").await?, "a");
        assert_eq!(mutable(1, "x".to_owned()).await?, "x2");
        assert_eq!(patterns((1, 2), Wrapper(3), [4, 5, 6]).await?, 10);
        assert_eq!(unnamed(1, String::new(), vec![]).await?, 1);
        assert_eq!(common_names(1, 1, 1, 1, 1, 1, 1, 1).await?, 8);
        assert_eq!(moved("a".to_owned()).await?, b"a");
        assert_eq!(assert_send(service().by_reference(1)).await?, 2);
        assert_eq!(assert_send(service().by_mutable_reference()).await?, 2);
        assert_eq!(service().by_value().await?, "t!");
        assert_eq!(Arc::new(service()).by_arc().await?, 1);
        assert_eq!(Service::associated(1).await?, 1);
        assert_eq!(service().native(1).await?, 2);
        assert_eq!(diverging(1).await?, 1);
        #[allow(clippy::disallowed_methods)]
        let panicking = tokio::spawn(client.scope(always_panics(1)));
        assert!(panicking.await.is_err_and(|e| e.is_panic()));
        assert_eq!(inner_attributes(1).await?, 1);
        assert_eq!(nested_items(1).await?, 3);
        assert_eq!(assert_send(sendable(1, "x".to_owned())).await?, 2);
        assert_eq!(not_sendable(1, &Cell::new(0)).await?, 1);
        assert_eq!(assert_send(service().boxed(1, "n".to_owned(), 0)).await?, "nt1");
        assert_eq!(service().default_body(1).await?, 1);
        assert!(raw_identifiers(1).await?.get() > 0);
        assert_eq!(shadowed::names_of_the_prelude(1).await?, 1);
        assert_eq!(boxed_by_hand(1).await?, 1);
        assert_eq!(recursive(3).await?, 3);
        assert_eq!(made_by_a_macro(1, 2).await?, 2);
        assert_eq!(opaque_with_handler().await.to_string(), "yes");
        nothing(1).await;
        assert_eq!(derived(UserId(1), Named { name: "ab" }).await?, 3);
        assert_eq!(key_expression(UserId(1), "b:c")?.as_str(), "a:1:b%3ac:3:<>");
        drop(never_returns());
        Ok(())
    };
    Box::pin(client.scope(all)).await
}
