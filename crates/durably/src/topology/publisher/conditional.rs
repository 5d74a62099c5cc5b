//! Publishing into a store that writes on conditions, whichever that is.
//!
//! Decided here: that a text is replaced only by a write on the condition that it still is the one that
//! the decision was made about, and when to give up. A write that arrives late then finds another text and is
//! refused by the store itself, whoever sent it.

use std::future::Future;

use super::{Landing, Publication, Verdict};

/// A text as it was read, with its version; `None` if there is none.
pub type Found<V> = Option<(Vec<u8>, V)>;

/// The place of one group's text in a store that writes on conditions.
pub trait ConditionalText {
    /// Which version of the text was read, for a write on the condition that it still is that.
    type Version;
    /// What the store says when the condition does not hold.
    type Refusal;
    /// What else goes wrong.
    type Error;

    /// The text as it is, if there is one.
    fn get(&self) -> impl Future<Output = Result<Found<Self::Version>, Self::Error>>;

    /// Writes if the text still is as it was `read`; without one, if there still is none.
    fn put(
        &self,
        text: &[u8],
        read: Option<&Self::Version>,
    ) -> impl Future<Output = Result<Result<(), Self::Refusal>, Self::Error>>;
}

/// How often a write was refused because somebody else had written in between. Each time somebody got
/// on, so [`MOST`](Self::MOST) in a row mean that the store is not right.
#[derive(Clone, Copy, Debug, Default)]
pub struct Refused(usize);

impl Refused {
    /// After so many one gives up.
    pub const MOST: usize = 16;

    /// Counts one more; `false` if it was the last.
    pub fn again(&mut self) -> bool {
        self.0 += 1;
        self.0 < Refused::MOST
    }
}

/// What became of a publication into such a store.
#[derive(Debug)]
pub enum Conditionally<R> {
    /// It has landed, or something newer is there.
    Landed(Landing),
    /// Every write was refused; what the store said the last time.
    Contended(R),
}

impl Publication {
    /// Publishes into a store that writes on conditions: reads, decides and writes, again if somebody
    /// else wrote in between.
    ///
    /// # Errors
    ///
    /// What the store answers.
    pub async fn into_conditional<T: ConditionalText>(
        &self,
        place: &T,
    ) -> Result<Conditionally<T::Refusal>, T::Error> {
        let mut refused = Refused::default();
        loop {
            let stored = place.get().await?;
            let (text, version) = stored.unzip();
            let landing = match self.against(text.as_deref()) {
                Verdict::Stored => Landing::Stored,
                Verdict::Superseded(by) => Landing::Superseded(by),
                Verdict::Write => {
                    match place.put(self.text().as_bytes(), version.as_ref()).await? {
                        Ok(()) => Landing::Stored,
                        Err(_) if refused.again() => continue,
                        Err(refusal) => return Ok(Conditionally::Contended(refusal)),
                    }
                }
            };
            return Ok(Conditionally::Landed(landing));
        }
    }
}
