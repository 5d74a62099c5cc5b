//! One pass over all participants: by the alarm, or by the timer before it.

use std::fmt::Display;
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::{Either, join_all, select};

use super::{Arming, Scheduler};
use crate::error::StorageError;
use crate::time::Timestamp;

impl Scheduler {
    /// Handles the object's alarm: runs what is due, then arms the alarm for what is pending. A
    /// participant that fails is reported and does not stop the others.
    ///
    /// # Errors
    ///
    /// What storage answers when the alarm cannot be armed again; the host then calls again.
    pub async fn alarm(&self) -> Result<(), StorageError> {
        // The host has taken the alarm that fired off, or keeps one that was set while the object
        // opened. Not knowing makes the next transaction set it.
        self.0.alarm.set(None);
        self.0.in_alarm.set(true);
        let handoff = self.0.host.sleep(self.0.config.alarm_handoff);
        let pass = self.start_pass(self.now());
        self.look_ahead();
        let finished = match select(pass, handoff).await {
            Either::Left(_) => true,
            Either::Right(_) => false,
        };
        self.0.in_alarm.set(false);
        let arming = if finished {
            Arming::Ended
        } else {
            // Work that is left running need not have a row that is pending.
            Arming::NotLaterThan(self.now() + self.0.config.alarm_min_delay)
        };
        let scheduler = self.clone();
        let armed = self
            .0
            .host
            .transaction(move |transaction| scheduler.reconcile(transaction, arming));
        armed.await
    }

    /// Arms the alarm and the timer for what comes after a pass that has just started. The pass may
    /// take long or store nothing, and what is due meanwhile must wait for neither.
    pub(super) fn look_ahead(&self) {
        let armed = self.transaction(|_| Ok::<_, StorageError>(()));
        self.spawn(async move {
            if let Err(error) = armed.await {
                report("scheduler", &error);
            }
        });
    }

    /// Has every participant do what is due now. The work goes on when the returned future is
    /// dropped.
    pub(super) fn start_pass(&self, now: Timestamp) -> impl Future<Output = ()> + Unpin + use<> {
        let mut running = Vec::new();
        for participant in self.participants() {
            let (done, ended) = oneshot::channel::<()>();
            let name = participant.name();
            let work = participant.run_due(now);
            let scheduler = self.clone();
            self.spawn(async move {
                let outcome = work.await;
                scheduler.note(name, outcome.is_err());
                if let Err(error) = outcome {
                    report(name, &*error);
                }
                let _ = done.send(());
            });
            running.push(ended);
        }
        Box::pin(async move {
            join_all(running).await;
        })
    }
}

/// Reports that a capability could not do something in the background.
pub(crate) fn report(participant: &'static str, error: &(impl Display + ?Sized)) {
    tracing::error!(
        participant,
        %error,
        "durability.background_execution.failed"
    );
}

/// The default for [`SchedulerConfig::alarm_handoff`](super::SchedulerConfig): a minute before the
/// 15 that Cloudflare gives an alarm.
pub(super) const DEFAULT_HANDOFF: Duration = Duration::from_secs(14 * 60);
