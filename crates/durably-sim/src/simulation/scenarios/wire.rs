//! Semaphore messages on their way to holders: as JSON, over the network of the run.

use std::fmt;
use std::rc::Rc;

use durably::host::{LocalFuture, Object};
use durably::semaphore::SemaphoreError;
use durably::semaphore::client::ClientError;
use durably::semaphore::protocol::Reply;

use crate::node::Node;
use crate::object::VirtualObject;
use crate::simulation::invariants::books::Books;
use crate::simulation::run::Run;

/// An answer, as the history has it.
pub(super) struct Told(Result<Reply, ClientError>);

impl fmt::Display for Told {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok(reply) => {
                let told = serde_json::to_string(reply).map_err(|_| fmt::Error)?;
                formatter.write_str(&told)
            }
            Err(error) => write!(formatter, "{error}"),
        }
    }
}

/// What a holder does with the bytes of a message.
pub(super) type Handle<C> = fn(Rc<C>, Vec<u8>) -> LocalFuture<Result<Reply, SemaphoreError>>;

/// Where a message goes.
pub(super) struct Address<C: Object> {
    pub(super) key: String,
    pub(super) node: Node,
    pub(super) object: VirtualObject<C>,
    pub(super) handle: Handle<C>,
}

/// Sends a message from `from` and waits for its answer, for ever if nobody notices that it is lost.
/// What is answered is checked against the books.
pub(super) async fn send<C: Object>(
    run: Rc<Run>,
    books: Rc<Books>,
    from: Node,
    to: Address<C>,
    json: Vec<u8>,
) -> Result<Reply, ClientError> {
    let what = String::from_utf8_lossy(&json).into_owned();
    let Address {
        key,
        node,
        object,
        handle,
    } = to;
    let (asked, told_by) = (run.clone(), key.clone());
    let deliver = Rc::new(move || -> LocalFuture<Told> {
        let (object, json) = (object.clone(), json.clone());
        let (run, books, key) = (asked.clone(), books.clone(), told_by.clone());
        Box::pin(async move {
            let handled = object.call(move |holder| handle(holder, json)).await;
            Told(match handled {
                Ok(answered) => {
                    if let Ok(reply) = &answered {
                        books.told(&run, &key, reply);
                    }
                    answered.map_err(ClientError::from)
                }
                Err(ended) => {
                    run.cover("message cut off by a death");
                    Err(ClientError::unreachable(ended))
                }
            })
        })
    });
    let network = run.network.clone();
    match network.send(run, from, node, (key, what), deliver).await {
        Ok(Told(answer)) => answer,
        Err(_) => Err(ClientError::unreachable("the connection broke")),
    }
}
