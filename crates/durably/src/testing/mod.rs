//! The host exam: what every host must do, as one suite that each of them runs.
