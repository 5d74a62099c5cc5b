//! The bucket publisher takes the exam for publishers on a server that speaks S3, over HTTP. `run`
//! beside this starts one.
//!
//! Usage: `durably-s3-exam ADDRESS`, of a server with an empty bucket `topology` and none called
//! `missing`.

use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use durably::testing::publishers::{Examinee, run_all};
use durably::topology::Publisher;
use durably_native::publishers::{
    ObjectStoreError, ObjectStorePublisher, ObjectStoreReader, stored_name,
};
use futures::future::{FutureExt, LocalBoxFuture};
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

struct Bucket {
    store: Arc<dyn ObjectStore>,
    publisher: ObjectStorePublisher,
    reader: ObjectStoreReader,
}

impl Examinee for Bucket {
    fn publisher(&self) -> Rc<dyn Publisher> {
        Rc::new(self.publisher.clone())
    }

    fn read<'a>(&'a self, group: &'a str) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>, String>> {
        let read = self.reader.read(group);
        async { read.await.map_err(|error| error.to_string()) }.boxed_local()
    }

    fn damage<'a>(
        &'a self,
        group: &'a str,
        text: &'a [u8],
    ) -> LocalBoxFuture<'a, Result<bool, String>> {
        async move {
            let path = Path::from(format!("exam/{}", stored_name(group)));
            let put = self.store.put(&path, text.to_vec().into()).await;
            put.map(|_| true).map_err(|error| error.to_string())
        }
        .boxed_local()
    }
}

fn bucket(server: &str, name: &str) -> AmazonS3Builder {
    AmazonS3Builder::new()
        .with_endpoint(server)
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_access_key_id("test")
        .with_secret_access_key("test")
        .with_bucket_name(name)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let server = std::env::args()
        .nth(1)
        .ok_or("usage: durably-s3-exam ADDRESS")?;
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| "there is a TLS provider already")?;
    let store: Arc<dyn ObjectStore> = Arc::new(bucket(&server, "topology").build()?);
    let examinee = Bucket {
        publisher: ObjectStorePublisher::open(store.clone(), "exam").await?,
        reader: ObjectStoreReader::new(store.clone(), "exam"),
        store,
    };
    let mut verdicts = run_all(&examinee).await;
    verdicts.push(("a_missing_bucket_is_named", missing_bucket(&server).await));
    verdicts.push(("switched_off_is_refused", switched_off(&server).await));
    let mut failed = 0;
    for (case, verdict) in &verdicts {
        match verdict {
            Ok(()) => println!("{case}: ok"),
            Err(problem) => {
                failed += 1;
                println!("{case}: FAILED: {problem}");
            }
        }
    }
    println!("{} passed, {failed} failed", verdicts.len() - failed);
    Ok(ExitCode::from(u8::from(failed > 0)))
}

async fn missing_bucket(server: &str) -> Result<(), String> {
    let missing = bucket(server, "missing")
        .build()
        .map_err(|error| error.to_string())?;
    match ObjectStorePublisher::open(Arc::new(missing), "exam").await {
        Err(error) if error.to_string().contains("NoSuchBucket") => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

async fn switched_off(server: &str) -> Result<(), String> {
    let unconditional = bucket(server, "topology")
        .with_conditional_put(S3ConditionalPut::Disabled)
        .build()
        .map_err(|error| error.to_string())?;
    match ObjectStorePublisher::open(Arc::new(unconditional), "elsewhere").await {
        Err(ObjectStoreError::NoConditions { .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}
