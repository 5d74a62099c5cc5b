//! Jobs as lines: a stream of any length in, a stream of outcomes out.
//!
//! What has arrived is submitted together, up to a bound; nothing more is read until that is
//! answered and the client takes the answers. So the memory that a stream needs is bounded however
//! long it is, and a client that reads nothing is not read from.

use std::io;

use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use futures::{FutureExt, Stream, StreamExt, stream};
use serde::Serialize;
use tokio::sync::watch;

use super::Api;
use super::overload::InWork;
use durably_http::{ApiError, job};

/// Jobs that are submitted together at most, and their bytes (the last may pass that).
const BATCH_JOBS: usize = 500;
const BATCH_BYTES: usize = 1 << 20;

/// The outcomes of the jobs in `body`, one line for each line that is not blank.
pub(super) fn outcomes(
    api: Api,
    body: Body,
    in_work: InWork,
) -> impl Stream<Item = io::Result<Bytes>> {
    let reader = Reader {
        lines: Lines::new(api.config.max_body_bytes),
        chunks: body.into_data_stream(),
        stopping: api.stopping.clone(),
        ended: None,
    };
    stream::unfold(Some((reader, api, in_work)), |state| async move {
        let (mut reader, api, in_work) = state?;
        let batch = reader.batch().await;
        if !batch.is_empty() {
            let answers = answers(&api, batch).await;
            return Some((Ok(answers), Some((reader, api, in_work))));
        }
        match reader.ended? {
            End::Whole => None,
            End::Stopping => {
                let error = ApiError::new(
                    "stopping",
                    "the server stops: lines without an answer were not read",
                );
                Some((Ok(written(&[Last { error }])), None))
            }
            // Ends the answer without its proper end, so that the client sees it is not whole.
            End::Broken(error) => Some((Err(error), None)),
        }
    })
}

/// The last line of an answer that ends before its request.
#[derive(Serialize)]
struct Last {
    error: ApiError,
}

async fn answers(api: &Api, batch: Vec<Line>) -> Bytes {
    let numbers: Vec<u64> = batch.iter().map(|line| line.number).collect();
    let limit = api.config.max_body_bytes;
    let items: Vec<job::Item> = batch
        .into_iter()
        .map(|line| match line.text {
            Some(text) => job::read(&text),
            None => Err(job::line_too_large(limit)),
        })
        .collect();
    let mut results = job::submit(items, async |jobs| api.jobs.submit(jobs).await).await;
    for (result, number) in results.iter_mut().zip(numbers) {
        result.line = Some(number);
    }
    written(&results)
}

fn written<T: Serialize>(lines: &[T]) -> Bytes {
    let mut text = Vec::new();
    for line in lines {
        // Strings and numbers into memory: this cannot fail.
        let _ = serde_json::to_writer(&mut text, line);
        text.push(b'\n');
    }
    text.into()
}

/// Why nothing more is read.
enum End {
    Whole,
    Broken(io::Error),
    Stopping,
}

struct Reader {
    lines: Lines,
    chunks: BodyDataStream,
    stopping: watch::Receiver<bool>,
    ended: Option<End>,
}

impl Reader {
    /// Waits for a line, then takes what else has arrived; empty at the end.
    async fn batch(&mut self) -> Vec<Line> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        loop {
            while batch.len() < BATCH_JOBS && bytes < BATCH_BYTES {
                let Some(line) = self.lines.next() else { break };
                bytes += line.text.as_ref().map_or(0, Bytes::len);
                batch.push(line);
            }
            if batch.len() >= BATCH_JOBS || bytes >= BATCH_BYTES || self.ended.is_some() {
                return batch;
            }
            let chunk = if batch.is_empty() {
                tokio::select! {
                    chunk = self.chunks.next() => chunk,
                    _ = self.stopping.wait_for(|stopping| *stopping) => {
                        self.ended = Some(End::Stopping);
                        return batch;
                    }
                }
            } else {
                match self.chunks.next().now_or_never() {
                    Some(chunk) => chunk,
                    None => return batch,
                }
            };
            match chunk {
                Some(Ok(chunk)) => self.lines.push(&chunk),
                Some(Err(error)) => self.ended = Some(End::Broken(io::Error::other(error))),
                None => {
                    self.lines.finish();
                    self.ended = Some(End::Whole);
                }
            }
        }
    }
}

/// One line that is not blank.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    /// From 1, blank lines counted.
    number: u64,
    /// `None` if it was longer than allowed.
    text: Option<Bytes>,
}

/// Cuts chunks into lines, and keeps no more of a line than is allowed.
#[derive(Debug)]
struct Lines {
    limit: usize,
    /// What has arrived and is not cut yet.
    pending: BytesMut,
    /// Bytes of `pending` that are known to hold no line end.
    searched: usize,
    /// The line in work is too long; the rest of it is dropped.
    too_long: bool,
    number: u64,
}

impl Lines {
    fn new(limit: usize) -> Self {
        Lines {
            limit,
            pending: BytesMut::new(),
            searched: 0,
            too_long: false,
            number: 0,
        }
    }

    fn push(&mut self, chunk: &[u8]) {
        self.pending.extend_from_slice(chunk);
    }

    /// Nothing more comes: what is left is a line.
    fn finish(&mut self) {
        if !self.pending.is_empty() || self.too_long {
            self.pending.extend_from_slice(b"\n");
        }
    }

    fn next(&mut self) -> Option<Line> {
        loop {
            let rest = self.pending.get(self.searched..).unwrap_or_default();
            let Some(length) = rest.iter().position(|byte| *byte == b'\n') else {
                self.searched = self.pending.len();
                if self.searched > self.limit {
                    self.too_long = true;
                    self.pending.clear();
                    self.searched = 0;
                }
                return None;
            };
            let end = self.searched + length;
            let line = self.pending.split_to(end + 1).freeze().slice(..end);
            self.searched = 0;
            self.number += 1;
            let number = self.number;
            if std::mem::take(&mut self.too_long) || line.len() > self.limit {
                return Some(Line { number, text: None });
            }
            if !line.trim_ascii().is_empty() {
                return Some(Line {
                    number,
                    text: Some(line),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same by splitting the whole text.
    fn expected(text: &[u8], limit: usize) -> Vec<Line> {
        text.split(|byte| *byte == b'\n')
            .zip(1..)
            .map(|(line, number)| Line {
                number,
                text: (line.len() <= limit).then(|| Bytes::copy_from_slice(line)),
            })
            .filter(|line| {
                line.text
                    .as_ref()
                    .is_none_or(|text| !text.trim_ascii().is_empty())
            })
            .collect()
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_chunks(
            chunks in prop::collection::vec("[ab \r\n]{0,12}", 0..12),
            limit in 1..9usize,
        ) {
            let mut lines = Lines::new(limit);
            let mut found = Vec::new();
            for chunk in &chunks {
                lines.push(chunk.as_bytes());
                while let Some(line) = lines.next() {
                    found.push(line);
                }
                prop_assert!(lines.pending.len() <= limit);
            }
            lines.finish();
            while let Some(line) = lines.next() {
                found.push(line);
            }
            prop_assert_eq!(found, expected(chunks.concat().as_bytes(), limit));
        }
    }
}
