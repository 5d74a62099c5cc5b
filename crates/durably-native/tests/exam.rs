//! The native host takes the host exam, on real files.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use durably::testing::{ExamObject, Examinee, run_all};
use durably_native::{System, SystemConfig};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use tempfile::TempDir;

struct Native {
    data: PathBuf,
    system: RefCell<System>,
}

fn open(data: &PathBuf) -> System {
    let mut config = SystemConfig::default();
    config.threads = 4;
    System::builder(data)
        .config(config)
        .class::<ExamObject>(|host| Box::pin(ExamObject::open(host)))
        .open()
        .expect("the system opens")
}

impl Native {
    fn system(&self) -> System {
        self.system.borrow().clone()
    }
}

impl Examinee for Native {
    fn call<'a>(
        &'a self,
        object: &'a str,
        request: &'a str,
    ) -> LocalBoxFuture<'a, Result<Result<String, String>, String>> {
        let object = self.system().object::<ExamObject>(object);
        let request = request.to_owned();
        async move {
            let call = object.call(|object| async move { object.call(&request).await });
            call.await.map_err(|error| error.to_string())
        }
        .boxed_local()
    }

    fn crash<'a>(&'a self, object: &'a str) -> LocalBoxFuture<'a, ()> {
        let system = self.system();
        async move {
            let evicted = system.evict::<ExamObject>(object).await;
            evicted.expect("the name and the class are known");
        }
        .boxed_local()
    }

    fn restart<'a>(&'a self, away: Duration) -> LocalBoxFuture<'a, ()> {
        let system = self.system();
        async move {
            system.shutdown().await;
            tokio::time::sleep(away).await;
            self.system.replace(open(&self.data));
        }
        .boxed_local()
    }

    fn pass<'a>(&'a self, time: Duration) -> LocalBoxFuture<'a, ()> {
        tokio::time::sleep(time).boxed_local()
    }
}

#[tokio::test]
async fn the_native_host_passes_the_exam() {
    let folder = TempDir::new().expect("a folder");
    let host = Native {
        data: folder.path().to_owned(),
        system: RefCell::new(open(&folder.path().to_owned())),
    };
    let verdicts = run_all(&host).await;
    let failures: Vec<String> = verdicts
        .iter()
        .filter_map(|(case, verdict)| Some(format!("{case}: {}", verdict.as_ref().err()?)))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(!verdicts.is_empty());
    host.system().shutdown().await;
}
