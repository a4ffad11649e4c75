//! Users and passwords that change while the program runs.

use std::fmt;
use std::future::Future;

use redis::RedisConnectionInfo;

use crate::error::Error;
use crate::store::BoxFuture;

/// A password, and the user whose it is. Its `Debug` shows neither.
#[derive(Clone)]
pub struct Credentials {
    user: Option<String>,
    password: String,
}

impl Credentials {
    /// The password of `user`, as the server's ACL names it.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: Some(user.into()), password: password.into() }
    }

    /// The password of the default user.
    pub fn of_default_user(password: impl Into<String>) -> Self {
        Self { user: None, password: password.into() }
    }

    /// The settings with these credentials in place of those of the URL.
    pub(super) fn apply(&self, settings: RedisConnectionInfo) -> RedisConnectionInfo {
        let settings = settings.set_password(&self.password);
        settings.set_username(self.user.as_deref().unwrap_or("default"))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// Gives the credentials for each connection.
pub(super) struct CredentialsProvider(Ask);

type Ask = Box<dyn Fn() -> BoxFuture<'static, Result<Credentials, Error>> + Send + Sync>;

impl CredentialsProvider {
    pub(super) fn new<F, E>(provider: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Self(Box::new(move || {
            let asked = provider();
            Box::pin(async move {
                asked.await.map_err(|error| {
                    Error::unavailable("the application has no credentials", Cause(error.into()))
                })
            })
        }))
    }

    pub(super) async fn ask(&self) -> Result<Credentials, Error> {
        (self.0)().await
    }
}

/// The error of an application, which need not be sized.
#[derive(Debug)]
struct Cause(Box<dyn std::error::Error + Send + Sync>);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Cause {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}
