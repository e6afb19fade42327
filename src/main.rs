mod allocator;

use std::process::ExitCode;

fn main() -> ExitCode {
    allocator::configure();
    mcprl::cli::main(allocator::trim)
}
