//! Deliberate bugs: plausible mistakes, each a fault against what the library promises, to prove that
//! its tests, traces, simulation and model find faults at all. `docs/deliberate-bugs.md` says which
//! finds which.
//!
//! They exist with the feature `deliberate-bugs` only, and even then none is on until it is chosen:
//! for a thread by `with`, or for a process by the environment variable `DURABLY_BUG`. Without the
//! feature [`is_on`] is the constant `false`, so nothing of them is in a binary.
//!
//! At the place that a bug breaks, the right code stays as it is and one condition is added. Not
//! decided here: what a bug does.

#[cfg(feature = "deliberate-bugs")]
mod choice;

#[cfg(feature = "deliberate-bugs")]
pub use choice::{UnknownBug, VARIABLE, is_on, met, with};

/// Whether the code at this place is to be wrong: never, in this build.
#[cfg(not(feature = "deliberate-bugs"))]
pub(crate) const fn is_on(_: Bug) -> bool {
    false
}

/// Declares the bugs, each with its name.
macro_rules! bugs {
    ($($(#[$doc:meta])+ $bug:ident = $name:literal,)+) => {
        /// A deliberate bug.
        #[derive(Clone, Copy)]
        #[cfg_attr(feature = "deliberate-bugs", derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash))]
        pub enum Bug {
            $($(#[$doc])+ $bug,)+
        }

        #[cfg(feature = "deliberate-bugs")]
        impl Bug {
            /// All of them, in the order of the rooms that they break.
            pub const ALL: &[Bug] = &[$(Bug::$bug,)+];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Bug::$bug => $name,)+
                }
            }
        }
    };
}

bugs! {
    // The holder's deciders.
    /// A claim is not cut to the permits that were given.
    TrustReportedClaim = "trust-reported-claim",
    /// A release is not cut to the permits that were claimed.
    TrustReportedRelease = "trust-reported-release",
    /// An old report that arrives late lowers the released mark of a grant.
    MarkFalls = "mark-falls",
    /// A claim that comes after its deadline, but before a cleanup, is confirmed.
    ClaimAfterDeadline = "claim-after-deadline",
    /// A client may report grants of another.
    ForeignReport = "foreign-report",
    /// A round gives one permit more than the limit leaves.
    LimitOffByOne = "limit-off-by-one",
    /// Two demands for a group in one round may each take all that its ceiling leaves.
    GroupCeilingPerDemand = "group-ceiling-per-demand",
    /// What a group has leased does not count against its ceiling when grants are given.
    ForgetGroupFootprint = "forget-group-footprint",
    /// What is leased does not count against the limit when grants are given.
    ForgetFootprint = "forget-footprint",
    /// A group whose gate is closed is given permits.
    GiveToClosedGroup = "give-to-closed-group",
    /// The newest demand is served first.
    NewestFirst = "newest-first",
    /// A request that is repeated is given permits once more.
    RepeatGivesAgain = "repeat-gives-again",
    /// A report of a retired lease that does not know of it yet makes it live again.
    ReviveRetiredLease = "revive-retired-lease",
    /// A report that comes after a lease has expired has it go on.
    RenewExpiredLease = "renew-expired-lease",
    /// What a client reported as undrawn is free as soon as its lease is retired, though it may have been
    /// drawn since.
    RetireFreesUndrawn = "retire-frees-undrawn",
    /// The extra permits for leases are counted for grants as well.
    ExtraCountedTwice = "extra-counted-twice",
    /// What a client says it runs of a lease that the holder does not know takes nothing from the round.
    UnknownLeaseIsFree = "unknown-lease-is-free",

    // The holder's drive.
    /// A message is answered, and only then stored.
    ReplyBeforeCommit = "reply-before-commit",
    /// The sums in memory do not follow when permits come back.
    LoseDelta = "lose-delta",
    /// Claim deadlines set no alarm.
    ForgetDeadline = "forget-deadline",
    /// Permits that come back have no round held for those who wait.
    FreedWakesNobody = "freed-wakes-nobody",
    /// Permits that come back while a round is held have no further one held.
    FreedDuringRound = "freed-during-round",
    /// A client without storage that waits in a request counts as silent.
    WaitingCountsAsSilent = "waiting-counts-as-silent",
    /// A client without storage that only reports counts as silent.
    ReportingCountsAsSilent = "reporting-counts-as-silent",

    // The queue.
    /// A lease is drawn from after its time.
    DrawAfterExpiry = "draw-after-expiry",
    /// A lease that has stopped is drawn from.
    DrawFromStoppedLease = "draw-from-stopped-lease",
    /// A drawn permit that comes back is drawn again.
    DrawPermitAgain = "draw-permit-again",
    /// When a lease ends is read from one's own clock.
    TrustForeignClock = "trust-foreign-clock",
    /// Items are handed over before the holder has confirmed their claim.
    AdmitBeforeConfirmed = "admit-before-confirmed",
    /// A claim that was sent before a restart counts as confirmed.
    BelieveInheritedClaim = "believe-inherited-claim",
    /// A claim that nobody answered puts its items back.
    RequeueOnTimeout = "requeue-on-timeout",
    /// Items whose claim came too late are removed instead of put back.
    LoseExpiredItem = "lose-expired-item",
    /// Items that were given a permit before a restart count as handed over.
    ForgetToAdmit = "forget-to-admit",
    /// A stopped lease that the holder has not settled is forgotten in a restart.
    ForgetStoppedLease = "forget-stopped-lease",
    /// A request that is repeated has a new id.
    NewIdOnRepeat = "new-id-on-repeat",
    /// The release of an item counts twice.
    ReleaseTwice = "release-twice",
    /// A grant is forgotten before its holder has heard of the last release.
    SettleUntold = "settle-untold",
    /// A new item draws from a lease though others of its group wait for a place to run.
    OvertakeWaiting = "overtake-waiting",

    // Operations and jobs.
    /// The next attempt starts while the handler of one that timed out still runs.
    OverlapAfterTimeout = "overlap-after-timeout",
    /// An attempt that the object's death cut off counts as a failed one.
    InterruptionCounts = "interruption-counts",
    /// An attempt that the object's death cut off is not repeated.
    ForgetInterrupted = "forget-interrupted",
    /// A late result of a purged call becomes that of a new one with the same id.
    LateResultApplies = "late-result-applies",
    /// A job that is to be tried again gives its permit back.
    RetryReturnsPermit = "retry-returns-permit",
    /// The queue is told only of completed jobs when it asks which have ended.
    FailedKeepsPermit = "failed-keeps-permit",
    /// A shard takes jobs by an older list of shards than it has heard of.
    OldShardList = "old-shard-list",

    // The outbox.
    /// The outcome of an older version ends the newest.
    OlderOutcomeEndsNewer = "older-outcome-ends-newer",
    /// A value whose call was attempted is not taken back.
    DiscardForgetsAttempted = "discard-forgets-attempted",
    /// Versions of a key begin again when its value has arrived.
    VersionsBeginAgain = "versions-begin-again",
    /// A call starts for a key whose last one still runs.
    OverlapPerKey = "overlap-per-key",
    /// The alarm does not look at what is pending in the outbox.
    AlarmIgnoresOutbox = "alarm-ignores-outbox",

    // Topology.
    /// A write that nobody waits for any more is forgotten, though it may still land.
    ForgetUnendedWrite = "forget-unended-write",
    /// Whether an older write can still land is judged when the newer has ended, not when it began.
    ExpiryAtTheEnd = "expiry-at-the-end",
    /// A write that ends late is forgotten, and what it may have overwritten is not written again.
    LateWriteStays = "late-write-stays",
    /// Versions of a group begin again when it is created again.
    RecreatedBeginsAgain = "recreated-begins-again",
    /// A deletion is not published.
    DeletionNotPublished = "deletion-not-published",
    /// A member that enters a channel's role is not sent its value.
    EnteringGetsNothing = "entering-gets-nothing",
    /// A member that has left a channel's role is sent its value.
    LeavingGetsValues = "leaving-gets-values",
    /// A member applies whatever comes.
    ReceiverAppliesAnything = "receiver-applies-anything",
    /// A member compares versions without incarnations.
    ReceiverIgnoresIncarnation = "receiver-ignores-incarnation",
    /// A coordinator that finds a newer edition in the store goes on with its incarnation.
    NewerEditionIgnored = "newer-edition-ignored",

    // The scheduler.
    /// The alarm is not set.
    DropAlarm = "drop-alarm",
    /// The alarm is that of the capability that was asked last, not the earliest.
    AlarmOfTheLast = "alarm-of-the-last",
    /// The alarm is not set again when the object opens.
    NoAlarmOnOpen = "no-alarm-on-open",
}
