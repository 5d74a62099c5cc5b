//! Where durable objects live when they are embedded: worker threads, one SQLite file per object,
//! alarms, hibernation.

pub mod sqlite;
