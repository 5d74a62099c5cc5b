//! A concurrency budget shared by many objects: the holder, what is said between it and its
//! clients, and the client half.

pub mod protocol;
