//! The coordinator on the virtual host. What the traces tell of it is not told again here.

mod converging;
mod draining;
mod publishing;
mod receiving;
mod refusals;
mod support;
