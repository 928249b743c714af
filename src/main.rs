//! The `crawfish` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything else: a confined command starts here, in a process with one thread.
    if let Some(code) = crawfish_sandbox::helper() {
        return ExitCode::from(u8::try_from(code).unwrap_or(1));
    }
    // Only a test build has crash points; elsewhere this does nothing.
    let _crash_points = channel_api::crash_point::fail::FailScenario::setup();
    crawfish::cli::main()
}
