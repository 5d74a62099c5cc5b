//! How a queue reaches its holders.

use tower_service::Service;

use crate::host::LocalFuture;
use crate::layers::Timer;
use crate::semaphore::client::{ClientError, HolderCall, SemaphoreClient};
use crate::semaphore::protocol::{GrantReply, PermitRequest, PermitSync, Reply, SyncReply};

/// What a queue sends its messages through; a [`SemaphoreClient`] is one.
pub trait HolderTransport {
    /// Asks the holder of `key` for permits; resolves with its round.
    fn request(
        &self,
        key: &str,
        request: PermitRequest,
    ) -> LocalFuture<Result<GrantReply, ClientError>>;

    /// Reports to the holder of `key`.
    fn sync(&self, key: &str, sync: PermitSync) -> LocalFuture<Result<SyncReply, ClientError>>;
}

impl<S, T> HolderTransport for SemaphoreClient<S, T>
where
    S: Service<HolderCall, Response = Reply, Error: Into<ClientError>, Future: 'static>
        + Clone
        + 'static,
    T: Timer<Sleep: 'static> + Clone + 'static,
{
    fn request(
        &self,
        key: &str,
        request: PermitRequest,
    ) -> LocalFuture<Result<GrantReply, ClientError>> {
        Box::pin(SemaphoreClient::request(self, key, request))
    }

    fn sync(&self, key: &str, sync: PermitSync) -> LocalFuture<Result<SyncReply, ClientError>> {
        Box::pin(SemaphoreClient::sync(self, key, sync))
    }
}
