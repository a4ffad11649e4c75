//! A locked function that ends in each of the ways in which one can.

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
    /// Those behind which the caller goes on.
    pub(crate) const RETURNS: [Self; 4] =
        [Self::Value, Self::Error, Self::EarlyReturn, Self::QuestionMark];

    /// Whether the caller got what the body ended with.
    pub(crate) fn check(self, result: Result<u64, OrderError>) {
        match (self, result) {
            (Self::Value, Ok(7))
            | (Self::EarlyReturn, Ok(0))
            | (Self::Error | Self::QuestionMark, Err(OrderError::SoldOut)) => {}
            (end, result) => panic!("{end:?} gave {result:?}"),
        }
    }
}

/// Called for the user 7.
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
