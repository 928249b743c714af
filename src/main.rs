//! The `crawfish` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Only a test build has crash points; elsewhere this does nothing.
    let _crash_points = channel_api::crash_point::fail::FailScenario::setup();
    crawfish::cli::main()
}
