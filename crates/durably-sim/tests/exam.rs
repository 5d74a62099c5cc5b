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
    fault: Option<Fault>,
    objects: RefCell<BTreeMap<String, VirtualObject<ExamObject>>>,
}

/// What a host does wrong, to see that the exam notices.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    AlarmsNeverFire,
    AlarmsAreLostWithTheHost,
    StorageIsLostWithTheHost,
    CrashesDoNotHappen,
    AllNamesAreOne,
}

impl Virtual {
    fn new(fault: Option<Fault>) -> Virtual {
        Virtual {
            world: World::new(1_000_000),
            fault,
            objects: RefCell::default(),
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn alarms(&self) -> Alarms {
        if self.has(Fault::AlarmsNeverFire) {
            Alarms::Manual
        } else {
            Alarms::Automatic
        }
    }

    fn failures(&self) -> Vec<String> {
        let verdicts = self.world.block_on(run_all(self));
        assert!(verdicts.len() > 50, "the exam has {} cases", verdicts.len());
        verdicts
            .iter()
            .filter_map(|(case, verdict)| Some(format!("{case}: {}", verdict.as_ref().err()?)))
            .collect()
    }

    fn object(&self, name: &str) -> VirtualObject<ExamObject> {
        let name = match self.has(Fault::AllNamesAreOne) {
            true => "one",
            false => name,
        };
        let mut objects = self.objects.borrow_mut();
        let create = || self.world.object(name, self.alarms(), ExamObject::open);
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
        async {
            if !self.has(Fault::CrashesDoNotHappen) {
                self.object(object).crash();
            }
        }
        .boxed_local()
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
            if self.has(Fault::StorageIsLostWithTheHost) {
                return;
            }
            let alarms = match self.has(Fault::AlarmsAreLostWithTheHost) {
                true => Alarms::Manual,
                false => self.alarms(),
            };
            for (name, storage) in storages {
                let object = self
                    .world
                    .object_on(storage, &name, alarms, ExamObject::open);
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
    let failures = Virtual::new(None).failures();
    assert!(failures.is_empty(), "failed:\n{}", failures.join("\n"));
}

#[test]
fn a_faulty_host_fails_the_exam() {
    for (fault, must_fail) in [
        (Fault::AlarmsNeverFire, "an_alarm_in_the_past_fires"),
        (
            Fault::AlarmsAreLostWithTheHost,
            "an_alarm_that_came_due_while_the_host_was_away_fires",
        ),
        (
            Fault::StorageIsLostWithTheHost,
            "an_alarm_that_came_due_while_the_host_was_away_fires",
        ),
        (
            Fault::CrashesDoNotHappen,
            "eviction_forgets_memory_and_keeps_rows",
        ),
        (Fault::AllNamesAreOne, "two_objects_do_not_see_each_other"),
    ] {
        let failures = Virtual::new(Some(fault)).failures();
        assert!(
            failures
                .iter()
                .any(|failure| failure.starts_with(must_fail)),
            "{must_fail} passed; failed:\n{}",
            failures.join("\n")
        );
    }
}
