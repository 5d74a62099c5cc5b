//! How jobs find their shards: accounts publish their lists, and whoever submits jobs reads them, as the
//! native host does. Only when nothing is published, or a shard says that the list is an old one, the
//! account is asked.

use std::rc::Rc;
use std::sync::Arc;

use durably::error::BoxError;
use durably::host::LocalFuture;
use durably::jobs::ShardLists;
use durably::topology::{Landing, Publication, Publisher, ReaderOptions, Source, TopologyReader};

use super::{Application, WeakApplication};
use crate::node::Node;

/// What readers draw from.
type Chance = Box<dyn Fn() -> u64>;

/// A process that submits jobs.
pub(super) type Router = TopologyReader<Published, Node, Chance>;

/// What accounts publish, which fails now and then.
#[derive(Clone)]
pub(super) struct Published(pub(super) WeakApplication);

impl Publisher for Published {
    fn is_version_aware(&self) -> bool {
        true
    }

    fn publish(&self, publication: Rc<Publication>) -> LocalFuture<Result<Landing, BoxError>> {
        let Some(application) = self.0.upgrade() else {
            return Box::pin(async { Err("there is no store".into()) });
        };
        Box::pin(async move {
            application.dice.linger("store-ms").await;
            if application.dice.fails("store-fails-percent") {
                application.run.cover("list of shards not published");
                return Err("the store refused it".into());
            }
            application.published.publish(publication).await
        })
    }
}

impl Source for Published {
    type Text = Arc<[u8]>;
    type Read = LocalFuture<Result<Option<Self::Text>, BoxError>>;

    fn read(&self, group: &str) -> Self::Read {
        let (application, group) = (self.0.upgrade(), group.to_owned());
        Box::pin(async move {
            let application = application.ok_or("there is no store")?;
            application.dice.linger("store-ms").await;
            if application.dice.fails("store-fails-percent") {
                return Err("the store cannot be read".into());
            }
            application
                .published
                .read(&group)
                .map_or(Ok(None), |text| Ok(Some(Arc::from(text))))
        })
    }
}

/// A process that submits jobs, by the clock of a node.
pub(super) fn router(application: &Rc<Application>, node: Node) -> Router {
    let weak = Rc::downgrade(application);
    let random: Chance = Box::new(move || {
        weak.upgrade()
            .map_or(0, |application| application.dice.below(u64::MAX))
    });
    let mut options = ReaderOptions::default();
    options.ttl = application.run.knob_ms("list-ttl-ms");
    let published = Published(Rc::downgrade(application));
    match TopologyReader::new(options, published, node, random) {
        Ok(router) => router,
        Err(error) => panic!("the knobs make no reader: {error}"),
    }
}

/// An account's lists as somebody finds them; `None` if it can neither be read nor asked.
pub(super) async fn lists_of(application: &Rc<Application>, account: &str) -> Option<ShardLists> {
    let router = {
        let routers = application.routers.borrow();
        let place = application.dice.below(routers.len() as u64) as usize;
        routers.get(place)?.clone()
    };
    if let Ok(reading) = router.get(account).await
        && let Some(lists) = ShardLists::of(&reading)
    {
        application.run.cover("list of shards read");
        return Some(lists);
    }
    stored_lists_of(application, account).await
}

/// An account's lists as it has them; `None` if it cannot be reached.
pub(super) async fn stored_lists_of(
    application: &Rc<Application>,
    account: &str,
) -> Option<ShardLists> {
    let object = application.account(account)?.object.clone();
    let shards = u32::try_from(application.run.knob("shards")).unwrap_or(1);
    let lists = object
        .call(move |account| async move { account.shards_or_default(shards).await })
        .await;
    lists.ok()?.ok()
}
