//! The virtual host takes the host exam.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use durably::testing::{ExamObject, Examinee, run_all};
use durably_sim::{Alarms, VirtualObject, World};
use futures::FutureExt;
use futures::future::LocalBoxFuture;

struct Virtual {
    world: World,
    objects: RefCell<BTreeMap<String, VirtualObject<ExamObject>>>,
}

impl Virtual {
    fn object(&self, name: &str) -> VirtualObject<ExamObject> {
        let mut objects = self.objects.borrow_mut();
        let create = || self.world.object(name, Alarms::Automatic, ExamObject::open);
        objects
            .entry(name.to_owned())
            .or_insert_with(create)
            .clone()
    }
}

impl Examinee for Virtual {
    fn call<'a>(
        &'a self,
        object: &'a str,
        request: &'a str,
    ) -> LocalBoxFuture<'a, Result<Result<String, String>, String>> {
        let (object, request) = (self.object(object), request.to_owned());
        async move {
            let call = object.call(|object| async move { object.call(&request).await });
            call.await.map_err(|error| error.to_string())
        }
        .boxed_local()
    }

    fn crash<'a>(&'a self, object: &'a str) -> LocalBoxFuture<'a, ()> {
        async { self.object(object).crash() }.boxed_local()
    }

    fn restart<'a>(&'a self, away: Duration) -> LocalBoxFuture<'a, ()> {
        async move {
            let storages: Vec<_> = self
                .objects
                .take()
                .into_iter()
                .map(|(name, object)| (name, object.storage().clone()))
                .collect();
            self.world.sleep(away).await;
            for (name, storage) in storages {
                let object =
                    self.world
                        .object_on(storage, &name, Alarms::Automatic, ExamObject::open);
                self.objects.borrow_mut().insert(name, object);
            }
        }
        .boxed_local()
    }

    fn pass<'a>(&'a self, time: Duration) -> LocalBoxFuture<'a, ()> {
        self.world.sleep(time).boxed_local()
    }
}

#[test]
fn the_virtual_host_passes_the_exam() {
    let world = World::new(1_000_000);
    let host = Virtual {
        world: world.clone(),
        objects: RefCell::default(),
    };
    let verdicts = world.block_on(run_all(&host));
    let failures: Vec<String> = verdicts
        .iter()
        .filter_map(|(case, verdict)| Some(format!("{case}: {}", verdict.as_ref().err()?)))
        .collect();
    assert!(verdicts.len() > 40, "the exam has {} cases", verdicts.len());
    assert!(failures.is_empty(), "failed:\n{}", failures.join("\n"));
}
