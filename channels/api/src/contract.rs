//! The behaviour every adapter's tests run.
