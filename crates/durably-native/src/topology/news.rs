//! Tells those who watch a group that it was published, so that they need not look again and again.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use durably::error::BoxError;
use durably::host::LocalFuture;
use durably::topology::{Landing, Publication, Publisher};
use tokio::sync::watch;

use crate::publishers::FolderPublisher;

/// Topology and group.
type Watched = (Arc<str>, Arc<str>);

/// Who watches what. Clones share it.
#[derive(Clone, Default)]
pub(super) struct News(Arc<Mutex<HashMap<Watched, watch::Sender<()>>>>);

impl News {
    fn watched(&self) -> MutexGuard<'_, HashMap<Watched, watch::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn watch(&self, topology: &str, group: &str) -> Watching {
        let key: Watched = (topology.into(), group.into());
        let mut watched = self.watched();
        let sender = watched.entry(key.clone()).or_default();
        Watching {
            changed: Some(sender.subscribe()),
            news: self.clone(),
            key,
        }
    }

    fn tell(&self, topology: &str, group: &str) {
        let key: Watched = (topology.into(), group.into());
        if let Some(sender) = self.watched().get(&key) {
            sender.send_replace(());
        }
    }
}

/// Tells when a group may have been published anew. What was published before it was made is not
/// told, so read the group after that.
pub struct Watching {
    /// Taken when it ends.
    changed: Option<watch::Receiver<()>>,
    news: News,
    key: Watched,
}

impl Watching {
    /// Resolves when the group was published since the last time this resolved.
    pub async fn changed(&mut self) {
        let told = match &mut self.changed {
            Some(changed) => changed.changed().await.is_ok(),
            None => false,
        };
        if !told {
            // The sender stays for as long as somebody watches.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.changed = None;
        let mut watched = self.news.watched();
        if watched
            .get(&self.key)
            .is_some_and(|sender| sender.receiver_count() == 0)
        {
            watched.remove(&self.key);
        }
    }
}

/// Publishes into a topology's folder, and tells of it.
pub(super) struct Telling {
    publisher: FolderPublisher,
    news: News,
    topology: Arc<str>,
}

impl Telling {
    pub(super) fn new(publisher: FolderPublisher, news: News, topology: &str) -> Self {
        Telling {
            publisher,
            news,
            topology: topology.into(),
        }
    }
}

impl Publisher for Telling {
    fn is_version_aware(&self) -> bool {
        self.publisher.is_version_aware()
    }

    fn publish(&self, publication: Rc<Publication>) -> LocalFuture<Result<Landing, BoxError>> {
        let publishing = self.publisher.publish(publication.clone());
        let (news, topology) = (self.news.clone(), self.topology.clone());
        Box::pin(async move {
            let landing = publishing.await;
            // Also of one that failed, which may be there all the same.
            news.tell(&topology, publication.group());
            landing
        })
    }
}
