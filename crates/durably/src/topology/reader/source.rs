//! Where published texts are read, as the reader sees it.

use std::future::{Future, Ready, ready};
use std::sync::Arc;

use futures::future::{ErrInto, TryFutureExt};

use crate::error::BoxError;
use crate::topology::publisher::MemoryPublisher;

/// A store of published texts.
///
/// Every `Fn(&str) -> impl Future<Output = Result<Option<Text>, Error>>` is one:
///
/// ```
/// use durably::topology::Source;
///
/// # async fn fetch(key: String) -> Result<Option<String>, std::io::Error> { Ok(None) }
/// fn store() -> impl Source {
///     |group: &str| {
///         let key = format!("topology/{group}");
///         async move { fetch(key).await }
///     }
/// }
/// ```
pub trait Source {
    /// The text, as it was published.
    type Text: AsRef<[u8]>;
    /// A read. It is dropped when it takes too long, or when nobody waits for it any more.
    type Read: Future<Output = Result<Option<Self::Text>, BoxError>>;

    /// Reads what is published of a group; `None` if nothing is.
    fn read(&self, group: &str) -> Self::Read;
}

impl<F, Read, Text, Error> Source for F
where
    F: Fn(&str) -> Read,
    Read: Future<Output = Result<Option<Text>, Error>>,
    Text: AsRef<[u8]>,
    Error: Into<BoxError>,
{
    type Text = Text;
    type Read = ErrInto<Read, BoxError>;

    fn read(&self, group: &str) -> Self::Read {
        self(group).err_into()
    }
}

impl Source for MemoryPublisher {
    type Text = Arc<[u8]>;
    type Read = Ready<Result<Option<Arc<[u8]>>, BoxError>>;

    fn read(&self, group: &str) -> Self::Read {
        let text = MemoryPublisher::read(self, group);
        ready(Ok(text.map(Arc::from)))
    }
}
