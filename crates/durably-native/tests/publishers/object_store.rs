//! Buckets: the exam in memory, and what goes wrong on the way to a store.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use durably::Timestamp;
use durably::testing::published;
use durably::testing::publishers::{Examinee, run_all};
use durably::topology::{Landing, Publication, Publisher};
use durably_native::publishers::{
    ObjectStoreError, ObjectStorePublisher, ObjectStoreReader, stored_name,
};
use futures::TryStreamExt;
use futures::future::{FutureExt, LocalBoxFuture, join_all};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt};
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::setup::{deletion, edition, passed, snapshot, version};
use super::troubled::{Conditions, Trouble, Troubled};

/// A bucket that takes the exam. Publishers are opened before, since that is async.
pub(crate) struct Bucket {
    store: Arc<dyn ObjectStore>,
    publisher: ObjectStorePublisher,
    reader: ObjectStoreReader,
}

impl Bucket {
    pub(crate) async fn open(store: Arc<dyn ObjectStore>) -> Self {
        let publisher = ObjectStorePublisher::open(store.clone(), "topology").await;
        Bucket {
            publisher: publisher.unwrap_or_else(|error| panic!("{error}")),
            reader: ObjectStoreReader::new(store.clone(), "topology"),
            store,
        }
    }
}

fn path(group: &str) -> Path {
    Path::from(format!("topology/{}", stored_name(group)))
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
            let put = self.store.put(&path(group), text.to_vec().into()).await;
            put.map(|_| true).map_err(|error| error.to_string())
        }
        .boxed_local()
    }

    /// It documents no limit.
    fn longest_group(&self) -> usize {
        100_000
    }
}

#[tokio::test]
async fn a_bucket_in_memory_passes_the_exam() {
    let store = Arc::new(InMemory::new());
    let bucket = Bucket::open(store.clone()).await;
    passed(run_all(&bucket).await);
    // Whatever the groups were called, nothing lies where it should not.
    let objects: Vec<_> = store.list(None).try_collect().await.expect("a list");
    for object in objects {
        let parts: Vec<String> = object
            .location
            .parts()
            .map(|part| part.as_ref().to_owned())
            .collect();
        let right = match &parts[..] {
            [prefix, probe] => prefix == "topology" && probe == "probe",
            [prefix, folder, file] => {
                prefix == "topology" && folder.len() == 2 && file.ends_with(".json")
            }
            _ => false,
        };
        assert!(right, "{}", object.location);
    }
}

#[tokio::test]
async fn a_bucket_that_is_slow_and_refuses_at_random_passes_the_exam() {
    for seed in 1..4 {
        let bucket = Bucket::open(Arc::new(Troubled::restless(seed))).await;
        passed(run_all(&bucket).await);
    }
}

struct Fixture {
    store: Arc<Troubled>,
    publisher: ObjectStorePublisher,
}

impl Fixture {
    async fn new() -> Self {
        let store = Arc::new(Troubled::new(Conditions::Kept));
        let publisher = ObjectStorePublisher::open(store.clone(), "topology").await;
        Fixture {
            publisher: publisher.unwrap_or_else(|error| panic!("{error}")),
            store,
        }
    }

    async fn publish(&self, publication: Rc<Publication>) -> Result<Landing, ObjectStoreError> {
        let published = self.publisher.publish(publication).await;
        published.map_err(|error| *error.downcast().expect("an error of the store"))
    }

    async fn must_publish(&self, publication: Rc<Publication>) -> Landing {
        let published = self.publish(publication).await;
        published.unwrap_or_else(|error| panic!("{error}"))
    }

    async fn stored(&self, group: &str) -> Option<u64> {
        let text = self.publisher.reader().read(group).await;
        version(group, text.unwrap_or_else(|error| panic!("{error}")))
    }
}

#[tokio::test]
async fn what_somebody_else_wrote_in_between_is_decided_about_anew() {
    let fixture = Fixture::new().await;
    let rival = |version| Trouble::Rival(snapshot("a", version).text().to_owned());
    // Onto nothing, and onto what is there; the rival's is older, and newer.
    fixture.store.expect([rival(1), rival(2)]);
    assert_eq!(
        fixture.must_publish(snapshot("a", 5)).await,
        Landing::Stored
    );
    assert_eq!(fixture.stored("a").await, Some(5));
    fixture.store.expect([rival(9)]);
    let landing = fixture.must_publish(snapshot("a", 6)).await;
    assert_eq!(landing, Landing::Superseded(edition(9)));
    fixture.store.expect([rival(11)]);
    let landing = fixture.must_publish(deletion("a", 10)).await;
    assert_eq!(landing, Landing::Superseded(edition(11)));
    // The very same, as when a client repeated a write whose answer it lost.
    fixture.store.expect([rival(12)]);
    assert_eq!(
        fixture.must_publish(snapshot("a", 12)).await,
        Landing::Stored
    );
    // Another coordinator's, and something that is no snapshot.
    let other = published::edition("coordinator-2", Timestamp::from_millis(1), 99);
    let other = published::text("a", &other, None);
    fixture
        .store
        .expect([Trouble::Rival(other), Trouble::Rival("{".into())]);
    assert_eq!(
        fixture.must_publish(snapshot("a", 13)).await,
        Landing::Stored
    );
    assert_eq!(fixture.stored("a").await, Some(13));
}

#[tokio::test]
async fn a_store_that_always_refuses_is_given_up_and_tried_again_by_the_next_call() {
    let fixture = Fixture::new().await;
    fixture.must_publish(snapshot("a", 1)).await;
    fixture.store.expect((0..16).map(|_| Trouble::Refused));
    match fixture.publish(snapshot("a", 2)).await {
        Err(error @ ObjectStoreError::Contended { attempts: 16, .. }) => {
            assert_eq!(error.code(), "publisher_contended");
            assert!(error.to_string().contains(&stored_name("a")), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(fixture.stored("a").await, Some(1));
    fixture.store.expect((0..15).map(|_| Trouble::Refused));
    assert_eq!(
        fixture.must_publish(snapshot("a", 2)).await,
        Landing::Stored
    );
    assert_eq!(fixture.stored("a").await, Some(2));
}

#[tokio::test]
async fn what_fails_is_an_error_and_changes_nothing_else() {
    let fixture = Fixture::new().await;
    fixture.must_publish(snapshot("a", 1)).await;
    fixture.store.failing_reads.store(1, Relaxed);
    let unread = fixture.publish(snapshot("a", 2)).await;
    fixture.store.expect([Trouble::Fails]);
    let unwritten = fixture.publish(snapshot("a", 2)).await;
    for failed in [unread, unwritten] {
        let error = failed.expect_err("the line is dead");
        assert_eq!(error.code(), "publisher_store");
        let text = error.to_string();
        assert!(text.contains(&stored_name("a")), "{text}");
        assert!(text.contains("the line is dead"), "{text}");
        assert_eq!(fixture.stored("a").await, Some(1));
    }
    fixture.store.failing_reads.store(1, Relaxed);
    let unread = fixture.publisher.reader().read("a").await;
    assert_eq!(unread.expect_err("dead").code(), "publisher_store");
    assert_eq!(
        fixture.must_publish(snapshot("a", 2)).await,
        Landing::Stored
    );
}

#[tokio::test]
async fn a_write_whose_answer_was_lost_is_found_stored_by_the_next_call() {
    let fixture = Fixture::new().await;
    fixture.store.expect([Trouble::LosesAnswer]);
    let lost = fixture.publish(snapshot("a", 1)).await;
    assert_eq!(lost.expect_err("no answer").code(), "publisher_store");
    assert_eq!(
        fixture.must_publish(snapshot("a", 1)).await,
        Landing::Stored
    );
    // A newer one replaces it though nobody ever knew of it.
    fixture.store.expect([Trouble::LosesAnswer]);
    let lost = fixture.publish(deletion("a", 2)).await;
    assert!(lost.is_err());
    assert_eq!(
        fixture.must_publish(snapshot("a", 3)).await,
        Landing::Stored
    );
    assert_eq!(fixture.stored("a").await, Some(3));
}

#[tokio::test]
async fn a_write_that_arrives_late_never_replaces_a_newer_one() {
    let fixture = Fixture::new().await;
    for (group, newer) in [("a", snapshot("a", 3)), ("b", deletion("b", 3))] {
        for first in [false, true] {
            let group = &format!("{group}{first}");
            let newer = match &*newer {
                Publication::Write { .. } => snapshot(group, 3),
                Publication::Deletion { .. } => deletion(group, 3),
            };
            if !first {
                fixture.must_publish(snapshot(group, 1)).await;
            }
            let (go, late) = oneshot::channel();
            fixture.store.expect([Trouble::Late(late)]);
            let mut older = fixture.publisher.publish(snapshot(group, 2));
            assert!((&mut older).now_or_never().is_none(), "it is under way");
            assert_eq!(fixture.must_publish(newer).await, Landing::Stored);
            go.send(()).expect("it waits");
            let landing = older.await.expect("the store answers");
            assert_eq!(landing, Landing::Superseded(edition(3)));
            assert_eq!(fixture.stored(group).await, Some(3));
        }
    }
}

#[tokio::test]
async fn stores_without_conditions_are_refused_when_they_are_opened() {
    let folder = TempDir::new().expect("a folder");
    let local = LocalFileSystem::new_with_prefix(folder.path()).expect("a folder");
    let stores: [Arc<dyn ObjectStore>; 2] = [
        Arc::new(local),
        Arc::new(Troubled::new(Conditions::CreatesOnly)),
    ];
    for store in stores {
        let name = store.to_string();
        // What hides behind a wrapper is found out as well, and a second time.
        let wrapped: Arc<dyn ObjectStore> = Arc::new(PrefixStore::new(store.clone(), "below"));
        for store in [store.clone(), store, wrapped] {
            match ObjectStorePublisher::open(store, "topology").await {
                Err(error @ ObjectStoreError::NoConditions { .. }) => {
                    assert_eq!(error.code(), "publisher_no_conditions");
                    let text = error.to_string();
                    assert!(text.contains("FolderPublisher"), "{text}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn stores_that_ignore_conditions_are_refused_when_they_are_opened() {
    for conditions in [Conditions::Ignored, Conditions::CreatesOverOthers] {
        let store = Arc::new(Troubled::new(conditions));
        for _ in 0..2 {
            match ObjectStorePublisher::open(store.clone(), "topology").await {
                Err(error @ ObjectStoreError::ConditionsIgnored { .. }) => {
                    assert_eq!(error.code(), "publisher_conditions_ignored");
                    assert!(error.to_string().contains("Troubled"), "{error}");
                }
                other => panic!("{conditions:?}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn a_store_that_cannot_be_reached_is_told_when_it_is_opened() {
    let store = Arc::new(Troubled::new(Conditions::Kept));
    store.failing_reads.store(1, Relaxed);
    let refused = ObjectStorePublisher::open(store.clone(), "topology").await;
    assert_eq!(refused.expect_err("dead").code(), "publisher_store");
    store.expect([Trouble::Fails]);
    let refused = ObjectStorePublisher::open(store.clone(), "topology").await;
    assert_eq!(refused.expect_err("dead").code(), "publisher_store");
    let opened = ObjectStorePublisher::open(store, "topology").await;
    assert!(opened.is_ok(), "{opened:?}");
}

#[tokio::test]
async fn many_may_open_one_store_at_once() {
    let store = Arc::new(Troubled::restless(7));
    let opening = (0..4).map(|_| ObjectStorePublisher::open(store.clone(), "topology"));
    for opened in join_all(opening).await {
        assert!(opened.is_ok(), "{opened:?}");
    }
}

#[tokio::test]
async fn publishers_below_different_prefixes_do_not_meet() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut publishers = Vec::new();
    for prefix in ["", "a", "a/b"] {
        let publisher = ObjectStorePublisher::open(store.clone(), prefix).await;
        publishers.push(publisher.unwrap_or_else(|error| panic!("{error}")));
    }
    for (number, publisher) in publishers.iter().enumerate() {
        let landing = publisher.publish(snapshot("g", 9 - number as u64)).await;
        assert_eq!(landing.expect("the store answers"), Landing::Stored);
    }
    for (number, publisher) in publishers.iter().enumerate() {
        let text = publisher.reader().read("g").await.expect("it answers");
        assert_eq!(version("g", text), Some(9 - number as u64));
    }
}
