//! Calls to a shard's object, each by its name with a text. Only the worker itself makes them.

use durably::jobs::{Cancel, CountJobs, IsDrained, JobShard, Knows, ShardCall, Status, Submit};
use durably_http::{ApiError, parse_object};

use crate::answer::{Answer, not_found};
use crate::request::Request;

/// Answers a request whose path is a call's name.
pub(crate) async fn answer(shard: &JobShard, request: Request) -> Result<Answer, ApiError> {
    let json = request.body.as_bytes();
    match request.path().as_slice() {
        [Submit::NAME] => run::<Submit>(shard, json).await,
        [Knows::NAME] => run::<Knows>(shard, json).await,
        [IsDrained::NAME] => run::<IsDrained>(shard, json).await,
        [Status::NAME] => run::<Status>(shard, json).await,
        [Cancel::NAME] => run::<Cancel>(shard, json).await,
        [CountJobs::NAME] => run::<CountJobs>(shard, json).await,
        _ => Err(not_found()),
    }
}

async fn run<C: ShardCall>(shard: &JobShard, json: &[u8]) -> Result<Answer, ApiError> {
    let call: C = parse_object(json)?;
    Ok(Answer::ok(&call.run(shard).await?))
}
