//! The `crawfish` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    crawfish::cli::main()
}
