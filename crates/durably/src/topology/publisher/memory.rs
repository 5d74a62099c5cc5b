//! A store in memory, for tests and for readers in the same process.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::ready;

use super::{Landing, Publication, Publisher, Verdict};
use crate::error::BoxError;
use crate::host::LocalFuture;

/// Published groups in memory; version-aware. Clones share one store, also across threads.
///
/// ```
/// use durably::topology::MemoryPublisher;
///
/// let store = MemoryPublisher::default();
/// assert_eq!(store.read("tenant-1"), None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct MemoryPublisher {
    texts: Arc<Mutex<BTreeMap<String, Arc<str>>>>,
}

impl MemoryPublisher {
    /// The published text of a group, tombstones included.
    pub fn read(&self, group: &str) -> Option<Arc<str>> {
        let texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        texts.get(group).cloned()
    }
}

impl Publisher for MemoryPublisher {
    fn is_version_aware(&self) -> bool {
        true
    }

    fn publish(&self, publication: Rc<Publication>) -> LocalFuture<Result<Landing, BoxError>> {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        let stored = texts.get(publication.group()).map(|text| text.as_bytes());
        let landing = match publication.against(stored) {
            Verdict::Write => {
                let group = publication.group().to_owned();
                texts.insert(group, publication.text().into());
                Landing::Stored
            }
            Verdict::Stored => Landing::Stored,
            Verdict::Superseded(by) => Landing::Superseded(by),
        };
        Box::pin(ready(Ok(landing)))
    }
}
