//! The `ropewalk` program.

fn main() -> std::process::ExitCode {
    ropewalk_cli::main()
}
