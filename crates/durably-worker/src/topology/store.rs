//! Where topologies are published, by what is bound: the R2 bucket `TOPOLOGY_R2`, else the KV namespace
//! `TOPOLOGY_KV`, else objects of the class that is bound to `TOPOLOGY_SHELF`.

use std::rc::Rc;

use durably::error::BoxError;
use durably::host::LocalFuture;
use durably::topology::{Landing, Place, Publication, Publisher, Source};
use durably_cloudflare::BindingError;
use durably_cloudflare::publishers::{
    KvPublisher, KvReader, R2Publisher, R2Reader, ShelfPublisher, ShelfReader,
};
use wasm_bindgen::JsCast;
use worker::Env;

use crate::settings::Environment;

const R2: &str = "TOPOLOGY_R2";
const KV: &str = "TOPOLOGY_KV";
const SHELF: &str = "TOPOLOGY_SHELF";

enum Bound {
    R2,
    Kv,
    Shelf,
}

fn bound(environment: &Environment) -> Bound {
    let is_bound = |name| !environment.get(name).is_undefined();
    match (is_bound(R2), is_bound(KV)) {
        (true, _) => Bound::R2,
        (false, true) => Bound::Kv,
        (false, false) => Bound::Shelf,
    }
}

/// Where in a store the groups of a topology are: what is readable of its name, and a hash.
fn prefix(topology: &str) -> String {
    let place = Place::of(topology);
    let stem = place.file().trim_end_matches(".json");
    format!("topologies/{stem}")
}

fn env(environment: &Environment) -> Env {
    environment.0.clone().unchecked_into()
}

/// Publishes a topology.
pub(super) struct TopologyPublisher(Rc<dyn Publisher>);

impl TopologyPublisher {
    pub(super) fn new(environment: &Environment, topology: &str) -> Result<Self, BindingError> {
        let (env, prefix) = (env(environment), prefix(topology));
        let publisher: Rc<dyn Publisher> = match bound(environment) {
            Bound::R2 => Rc::new(R2Publisher::new(&env, R2, &prefix)?),
            Bound::Kv => Rc::new(KvPublisher::new(&env, KV, &prefix)?),
            Bound::Shelf => Rc::new(ShelfPublisher::new(&env, SHELF, &prefix)?),
        };
        Ok(TopologyPublisher(publisher))
    }
}

impl Publisher for TopologyPublisher {
    fn is_version_aware(&self) -> bool {
        self.0.is_version_aware()
    }

    fn publish(&self, publication: Rc<Publication>) -> LocalFuture<Result<Landing, BoxError>> {
        self.0.publish(publication)
    }
}

/// Reads what is published of a topology.
#[derive(Clone)]
pub(super) enum TopologySource {
    R2(R2Reader),
    Kv(KvReader),
    Shelf(ShelfReader),
}

impl TopologySource {
    pub(super) fn new(environment: &Environment, topology: &str) -> Result<Self, BindingError> {
        let (env, prefix) = (env(environment), prefix(topology));
        Ok(match bound(environment) {
            Bound::R2 => TopologySource::R2(R2Reader::new(&env, R2, &prefix)?),
            Bound::Kv => TopologySource::Kv(KvReader::new(&env, KV, &prefix)?),
            Bound::Shelf => TopologySource::Shelf(ShelfReader::new(&env, SHELF, &prefix)?),
        })
    }
}

impl Source for TopologySource {
    type Text = Vec<u8>;
    type Read = LocalFuture<Result<Option<Vec<u8>>, BoxError>>;

    fn read(&self, group: &str) -> Self::Read {
        match self {
            TopologySource::R2(reader) => Source::read(reader, group),
            TopologySource::Kv(reader) => Source::read(reader, group),
            TopologySource::Shelf(reader) => {
                let read = Source::read(reader, group);
                Box::pin(async move { Ok(read.await?.map(String::into_bytes)) })
            }
        }
    }
}
