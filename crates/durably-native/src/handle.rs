//! Handles to objects: how other threads, and other objects, reach them.

use std::future::Future;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::{Arc, OnceLock, Weak};

use durably::host::Object;
use tokio::sync::oneshot;

use crate::class::Call;
use crate::error::CallError;
use crate::key::Key;
use crate::system::Shared;

/// Reaches a system without keeping it open; how objects get at other objects.
///
/// It can be had before the system is open, so that the functions which build objects can hold it.
/// Before the system is open and after it is gone, calls are answered with [`CallError::Stopping`].
#[derive(Clone, Default)]
pub struct SystemRef(pub(crate) Arc<OnceLock<Weak<Shared>>>);

impl SystemRef {
    /// A handle to the object `name` of class `C`. Nothing happens until it is called.
    pub fn object<C: Object>(&self, name: &str) -> ObjectHandle<C> {
        ObjectHandle {
            system: self.clone(),
            key: Arc::new(Key::new(C::CLASS, name)),
            class: PhantomData,
        }
    }

    fn shared(&self) -> Result<Arc<Shared>, CallError> {
        let shared = self.0.get().and_then(Weak::upgrade);
        shared.ok_or(CallError::Stopping)
    }
}

/// Reaches one object. It keeps neither the object nor the system open.
pub struct ObjectHandle<C> {
    system: SystemRef,
    key: Arc<Key>,
    class: PhantomData<fn() -> C>,
}

impl<C> Clone for ObjectHandle<C> {
    fn clone(&self) -> Self {
        ObjectHandle {
            system: self.system.clone(),
            key: self.key.clone(),
            class: PhantomData,
        }
    }
}

impl<C: Object> ObjectHandle<C> {
    /// The object's name.
    pub fn name(&self) -> &str {
        &self.key.name
    }

    /// Runs `turn` on the object, on its thread, and returns what it returned. The object is opened
    /// if it is closed. Turns of one object interleave at their awaits only; they begin in the order
    /// in which one caller sent them.
    ///
    /// Once sent a turn runs to its end even if the returned future is dropped.
    ///
    /// # Errors
    ///
    /// See [`CallError`]. What the object itself answers is `T`.
    pub async fn call<T, F, Turn>(&self, turn: F) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<C>) -> Turn + Send + 'static,
        Turn: Future<Output = T> + 'static,
    {
        let (answer, answered) = oneshot::channel();
        self.system
            .shared()?
            .call(&self.key, |under_way| Call::new(turn, under_way, answer))?;
        match answered.await {
            Ok(outcome) => outcome,
            // The thread ended before it came to this call.
            Err(_) => Err(CallError::Stopping),
        }
    }

    /// Whether the object has a file. It is not opened.
    ///
    /// # Errors
    ///
    /// [`CallError::BadName`], [`CallError::UnknownClass`] and [`CallError::Stopping`].
    pub fn exists(&self) -> Result<bool, CallError> {
        let shared = self.system.shared()?;
        shared.check(&self.key)?;
        Ok(self.key.path(&shared.data).exists())
    }
}
