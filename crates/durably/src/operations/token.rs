//! How a handler learns that its attempt should end.

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;

use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::Shared;

/// Tells a handler that its attempt timed out, was cancelled or was purged. Clones are one token.
///
/// Cancelling asks; it stops nothing by itself. A handler that does not listen goes on, and keeps
/// its slot of the pool for as long as it does.
#[derive(Clone, Debug)]
pub struct CancellationToken {
    cancelled: Rc<Cell<bool>>,
    told: Shared<oneshot::Receiver<()>>,
}

impl CancellationToken {
    /// Whether the attempt should end.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    /// Resolves when the attempt should end; never, if that does not come.
    pub async fn cancelled(&self) {
        if self.told.clone().await.is_err() {
            // The attempt ended without having been cancelled.
            pending::<()>().await;
        }
    }
}

/// The side that cancels.
pub(super) struct Canceller {
    token: CancellationToken,
    tell: Cell<Option<oneshot::Sender<()>>>,
}

impl Canceller {
    pub(super) fn new() -> Self {
        let (tell, told) = oneshot::channel();
        Canceller {
            token: CancellationToken {
                cancelled: Rc::default(),
                told: told.shared(),
            },
            tell: Cell::new(Some(tell)),
        }
    }

    pub(super) fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    pub(super) fn cancel(&self) {
        self.token.cancelled.set(true);
        if let Some(tell) = self.tell.take() {
            // Nobody may be listening, which is their matter.
            let _ = tell.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_clone_hears_of_it_before_and_after() {
        let canceller = Canceller::new();
        let (one, other) = (canceller.token(), canceller.token());
        let mut waiting = Box::pin(one.cancelled());
        assert!((&mut waiting).now_or_never().is_none());
        assert!(!other.is_cancelled());
        canceller.cancel();
        canceller.cancel();
        assert!(waiting.now_or_never().is_some());
        assert!(other.is_cancelled());
        assert!(other.cancelled().now_or_never().is_some());
    }

    #[test]
    fn a_token_outlives_its_attempt_without_being_cancelled() {
        let canceller = Canceller::new();
        let token = canceller.token();
        drop(canceller);
        assert!(!token.is_cancelled());
        assert!(token.cancelled().now_or_never().is_none());
    }
}
