//! The bug zoo: bugs that lock libraries have had, and that this one has had or might, for the suites to catch.
//!
//! In a build with `--cfg lock_zoo` the environment variable `LOCK_MUTANT` brings one of them back. Each names the test that must
//! fail then; `make zoo` shows that it does, and that it passes without. Other builds contain nothing of this.

mod mutants;

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use self::mutants::{MUTANTS, Mutant, VARIABLE};
use crate::store::Name;
use crate::store::Token;

static PRESENT: LazyLock<Option<&Mutant>> = LazyLock::new(|| {
    let name = std::env::var(VARIABLE).ok()?;
    let present = MUTANTS.iter().find(|mutant| mutant.name == name);
    assert!(present.is_some(), "{VARIABLE}={name}: there is no such mutant");
    present
});

/// Whether this is the one that is present.
pub(crate) fn is(name: &str) -> bool {
    PRESENT.is_some_and(|present| present.name == name)
}

/// Whether a mutant in the code has this name.
pub(crate) const fn is_listed(name: &str) -> bool {
    let mut index = 0;
    while index < MUTANTS.len() {
        let mutant = &MUTANTS[index];
        if mutant.script.is_empty() && same(mutant.name.as_bytes(), name.as_bytes()) {
            return true;
        }
        index += 1;
    }
    false
}

const fn same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut index = 0;
    while index < one.len() {
        if one[index] != other[index] {
            return false;
        }
        index += 1;
    }
    true
}

/// The script as the present mutant has it. Called once for each script.
pub(crate) fn script(text: &'static str) -> &'static str {
    let Some(mutant) = *PRESENT else { return text };
    mutant.check();
    let text = mutant
        .script
        .iter()
        .fold(text.to_owned(), |text, (piece, instead)| text.replace(piece, instead));
    text.leak()
}

/// The mutant token of a lock object: the same for all acquisitions of a client.
pub(crate) fn token_of(client: u64, name: &Name) -> Result<Token, crate::Error> {
    static TOKENS: LazyLock<Mutex<HashMap<(u64, Name), Token>>> = LazyLock::new(Mutex::default);
    let mut tokens = TOKENS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(token) = tokens.get(&(client, name.clone())) {
        return Ok(*token);
    }
    let token = Token::fresh()?;
    tokens.insert((client, name.clone()), token);
    Ok(token)
}
