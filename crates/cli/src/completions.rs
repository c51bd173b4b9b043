//! `polvo completions`: shell completions, made of the command lines' definitions.

use crate::CliError;
use crate::args::{Cli, CompletionsArgs, Program};
use crate::daemon_args::DaemonArgs;
use crate::output::print;
use clap::CommandFactory;
use clap_complete::Shell;

/// Prints the completions that were asked for.
pub fn completions(args: &CompletionsArgs) -> Result<(), CliError> {
    print(script(args.shell, args.program))
}

fn script(shell: Shell, program: Program) -> Vec<u8> {
    let (mut command, name) = match program {
        Program::Polvo => (Cli::command(), "polvo"),
        Program::Polvod => (DaemonArgs::command(), "polvod"),
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn completions_know_every_command_and_option() {
        for shell in Shell::value_variants() {
            let polvo = String::from_utf8(script(*shell, Program::Polvo)).unwrap();
            for command in Cli::command().get_subcommands() {
                assert!(polvo.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
            let polvod = String::from_utf8(script(*shell, Program::Polvod)).unwrap();
            assert!(polvod.contains("print-config"), "{shell}");
        }
    }
}
