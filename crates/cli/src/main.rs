//! The `ropewalk` program.

fn main() -> std::process::ExitCode {
    ropewalk_cli::take_name();
    ropewalk_cli::main()
}
