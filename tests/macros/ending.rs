//! A locked function that can end in every possible way.

use lock_core::{Error, distributed_lock};

#[derive(Debug)]
pub(crate) enum OrderError {
    Lock(Error),
    SoldOut,
}

impl From<Error> for OrderError {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Value,
    Error,
    EarlyReturn,
    QuestionMark,
    Panic,
}

impl End {
    /// The ends after which the call returns.
    pub(crate) const RETURNS: [Self; 4] =
        [Self::Value, Self::Error, Self::EarlyReturn, Self::QuestionMark];

    /// Checks that the caller got the result of the body.
    pub(crate) fn check(self, result: Result<u64, OrderError>) {
        match (self, result) {
            (Self::Value, Ok(7))
            | (Self::EarlyReturn, Ok(0))
            | (Self::Error | Self::QuestionMark, Err(OrderError::SoldOut)) => {}
            (end, result) => panic!("{end:?} gave {result:?}"),
        }
    }
}

/// Only for user 7.
#[distributed_lock(key = "order:<user_id>")]
pub(crate) async fn ending(user_id: u64, end: End) -> Result<u64, OrderError> {
    lock_core::assert_locked("order:7");
    match end {
        End::Value => {}
        End::Error => return Err(OrderError::SoldOut),
        End::EarlyReturn => return Ok(0),
        End::QuestionMark => Err(OrderError::SoldOut)?,
        End::Panic => panic!("on purpose"),
    }
    tokio::task::yield_now().await;
    Ok(user_id)
}
