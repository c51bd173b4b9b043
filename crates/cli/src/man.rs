//! `polvo man`: manual pages, made of the command lines' definitions.

use crate::args::{Cli, ManArgs};
use crate::daemon_args::DaemonArgs;
use crate::{CliError, Context, mount_helper};
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::io;

const SEE_ALSO: &str = "polvo(1), polvod(8), mount.polvo(8)";

/// A page of the manual.
struct Page {
    /// Name of its file: `polvo-up.1`.
    file: String,
    text: Vec<u8>,
}

/// Writes all pages.
pub fn man(args: &ManArgs) -> Result<(), CliError> {
    std::fs::create_dir_all(&args.dir).doing(|| format!("making {}", args.dir.display()))?;
    for page in pages().doing(|| "making the pages".into())? {
        let path = args.dir.join(&page.file);
        std::fs::write(&path, page.text).doing(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn pages() -> io::Result<Vec<Page>> {
    let mut polvo = Cli::command().disable_help_subcommand(true);
    // gives the commands the names under which users call them
    polvo.build();
    let mut pages = vec![page(&polvo, "1")?];
    for command in polvo.get_subcommands() {
        pages.push(page(command, "1")?);
        for command in command.get_subcommands() {
            pages.push(page(command, "1")?);
        }
    }
    pages.push(page(&DaemonArgs::command(), "8")?);
    pages.push(page(&mount_helper::command(), "8")?);
    Ok(pages)
}

fn page(command: &Command, section: &str) -> io::Result<Page> {
    let source = concat!("PolvoFS ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone())
        .section(section)
        .source(source)
        .manual("PolvoFS");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    let mut rest = Roff::new();
    if let Some(notes) = command.get_after_long_help() {
        rest.control("SH", ["NOTES"]);
        // indented lines stay lines of their own; the blanks in them are not to be stretched
        rest.control("ad", ["l"]);
        for line in notes.to_string().lines() {
            rest.text([roman(line)]);
        }
    }
    rest.control("SH", ["SEE ALSO"]);
    rest.text([roman(SEE_ALSO)]);
    rest.to_writer(&mut text)?;
    Ok(Page {
        file: man.get_filename(),
        text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_and_program_has_a_page() {
        let mut expected: Vec<String> = Cli::command()
            .get_subcommands()
            .map(|command| format!("polvo-{}.1", command.get_name()))
            .collect();
        expected.extend(
            [
                "polvo.1",
                "polvod.8",
                "mount.polvo.8",
                "polvo-node-add.1",
                "polvo-node-remove.1",
            ]
            .map(String::from),
        );
        expected.sort();
        let mut files: Vec<String> = pages().unwrap().into_iter().map(|page| page.file).collect();
        files.sort();
        assert_eq!(files, expected);
    }

    #[test]
    fn no_section_of_a_page_is_empty() {
        for page in pages().unwrap() {
            let text = String::from_utf8(page.text).unwrap();
            let name = page.file.rsplit_once('.').unwrap().0;
            assert!(text.contains(&name.replace('-', "\\-")), "{}: {text}", page.file);
            let sections: Vec<&str> = text.split("\n.SH ").skip(1).collect();
            assert!(sections.iter().any(|section| section.starts_with("DESCRIPTION")));
            for section in sections {
                let (title, body) = section.split_once('\n').unwrap_or((section, ""));
                assert!(!body.trim().is_empty(), "{}: {title} is empty", page.file);
            }
        }
    }

    #[test]
    fn what_users_are_not_to_use_is_in_no_page() {
        for page in pages().unwrap() {
            let text = String::from_utf8(page.text).unwrap();
            assert!(!text.contains("detached"), "{}", page.file);
        }
    }
}
