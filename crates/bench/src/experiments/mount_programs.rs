//! Programs on a tree of small files.

use crate::BenchError;
use crate::mounted::{Cache, Mounts};
use crate::report::Target::AtMost;
use crate::report::{Findings, Unit};
use crate::samples::each_in_turn;
use crate::suite::{Context, Experiment};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "mount-programs",
    title: "Programs on the mount",
    about: "git status, find and du on a tree of 1,000 small files (fewer in a quick run) that they have just been over; tar unpacking \
            it; cargo building a program without dependencies (where there is no cargo: make and the C compiler, of three files). On \
            the mounts as they are by default, beside the same on tmpfs. Times include the program's start.",
    run,
};

/// What is run, with what makes ready for it.
const PROGRAMS: [(&str, Program); 5] = [
    ("git status", Program::GitStatus),
    ("find", Program::Find),
    ("du", Program::Du),
    ("tar -x", Program::Unpack),
    ("build", Program::Build),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Program {
    GitStatus,
    Find,
    Du,
    Unpack,
    Build,
}

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    if !Path::new("/dev/fuse").exists() {
        found.note("Left out: there is no /dev/fuse.");
        return Ok(());
    }
    let mounts = Mounts::start(context.scratch, 64 << 20)?;
    let archive = context.scratch.join("tree.tar");
    let tree = Tree {
        directories: (context.effort.ops / 500).clamp(5, 40),
        archive: &archive,
    };
    tree.pack(&context.scratch.join("packed"))?;
    let tmpfs = ("tmpfs", mounts.tmpfs());
    let mut sides: Vec<_> = [tmpfs].into_iter().chain(mounts.ours(Cache::Strict)).collect();
    for (what, program) in PROGRAMS {
        if program == Program::GitStatus && !is_there("git") {
            found.note("Without git status: there is no git.");
            continue;
        }
        if program == Program::Build {
            let with = if is_there("cargo") { "cargo" } else { "make and cc" };
            found.note(format!("Built with {with}."));
        }
        sides.iter().try_for_each(|(_, dir)| tree.prepare(program, dir))?;
        let samples = each_in_turn(context.effort.rounds, &mut sides, |(_, dir)| {
            Ok([tree.time(program, dir)?])
        })?;
        let judged = matches!(program, Program::GitStatus | Program::Find | Program::Du);
        let base = format!("tmpfs {what}");
        for ((side, _), [samples]) in sides.iter().zip(&samples) {
            let name = format!("{side} {what}");
            match name == base {
                true => found.figure(&name, Unit::Ms, samples),
                false => found.against(&name, Unit::Ms, samples, &base, judged.then_some(AtMost(2.0))),
            };
        }
    }
    fs::remove_file(&archive)?;
    Ok(())
}

/// The tree that programs go over.
struct Tree<'a> {
    directories: usize,
    archive: &'a Path,
}

const FILES_A_DIRECTORY: usize = 25;

impl Tree<'_> {
    /// Makes the archive, by way of the tree itself.
    fn pack(&self, dir: &Path) -> Result<(), BenchError> {
        for directory in 0..self.directories {
            let directory_path = dir.join(format!("tree/d{directory}"));
            fs::create_dir_all(&directory_path)?;
            for file in 0..FILES_A_DIRECTORY {
                // 0 to 12 KiB, of the lengths of source files
                let number = directory * FILES_A_DIRECTORY + file;
                let text = format!("line {number}\n").repeat(number * 7919 % 1000);
                fs::write(directory_path.join(format!("f{file}.txt")), text)?;
            }
        }
        succeeds(
            Command::new("tar")
                .arg("-cf")
                .arg(self.archive)
                .arg("-C")
                .arg(dir)
                .arg("tree"),
        )?;
        Ok(fs::remove_dir_all(dir)?)
    }

    fn unpack(&self, into: &Path) -> Result<(), BenchError> {
        succeeds(Command::new("tar").arg("-xf").arg(self.archive).arg("-C").arg(into))
    }

    /// What a program finds in `dir`.
    fn prepare(&self, program: Program, dir: &Path) -> Result<(), BenchError> {
        match program {
            Program::GitStatus => {
                self.unpack(dir)?;
                let tree = dir.join("tree");
                succeeds(git(&tree).args(["init", "-q"]))?;
                succeeds(git(&tree).args(["add", "."]))?;
                let author = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"];
                succeeds(git(&tree).args(author).args(["commit", "-q", "-m", "tree"]))
            }
            Program::Find | Program::Du if dir.join("tree").exists() => Ok(()),
            Program::Find | Program::Du => self.unpack(dir),
            Program::Unpack => Ok(fs::create_dir(dir.join("unpacked"))?),
            Program::Build => write_sources(&dir.join("program")),
        }
    }

    /// Milliseconds of a run of it.
    fn time(&self, program: Program, dir: &Path) -> Result<f64, BenchError> {
        let tree = dir.join("tree");
        let timed = |command: &mut Command| {
            let start = Instant::now();
            succeeds(command)?;
            Ok(start.elapsed().as_secs_f64() * 1e3)
        };
        let twice = |command: &mut Command| {
            succeeds(command)?;
            timed(command)
        };
        match program {
            Program::GitStatus => twice(git(&tree).arg("status")),
            Program::Find => twice(Command::new("find").arg(&tree).args(["-size", "+1k"])),
            Program::Du => twice(Command::new("du").arg("-s").arg(&tree)),
            Program::Unpack => {
                let into = dir.join("unpacked");
                fs::remove_dir_all(&into)?;
                fs::create_dir(&into)?;
                timed(Command::new("tar").arg("-xf").arg(self.archive).arg("-C").arg(&into))
            }
            Program::Build => {
                let _ = fs::remove_dir_all(dir.join("program/target"));
                timed(&mut build(&dir.join("program")))
            }
        }
    }
}

/// Git in a directory, whatever is configured here.
fn git(dir: &Path) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(dir);
    git.env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1");
    git
}

fn is_there(program: &str) -> bool {
    succeeds(Command::new(program).arg("--version")).is_ok()
}

const MANIFEST: &str = "[package]\nname = \"program\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[workspace]\n";
const MAKEFILE: &str = "target/program: target/a.o target/b.o target/main.o\n\tcc -o $@ $^\ntarget/%.o: %.c\n\tmkdir -p target && cc -O1 -c -o $@ $<\n";

/// A program, for cargo and for make.
fn write_sources(dir: &Path) -> Result<(), BenchError> {
    fs::create_dir_all(dir.join("src"))?;
    for (name, text) in [
        ("Cargo.toml", MANIFEST),
        (
            "src/main.rs",
            "fn main() {\n    println!(\"{}\", std::env::args().count());\n}\n",
        ),
        ("Makefile", MAKEFILE),
        ("a.c", "#include <stdio.h>\nvoid a(int n) { printf(\"%d\\n\", n); }\n"),
        (
            "b.c",
            "#include <string.h>\nint b(const char *s) { return strlen(s); }\n",
        ),
        (
            "main.c",
            "void a(int);\nint b(const char *);\nint main(int n, char **v) { a(n + b(*v)); }\n",
        ),
    ] {
        fs::write(dir.join(name), text)?;
    }
    Ok(())
}

fn build(dir: &Path) -> Command {
    if !is_there("cargo") {
        let mut make = Command::new("make");
        make.arg("-s").arg("-C").arg(dir);
        return make;
    }
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--offline", "--quiet"]).current_dir(dir);
    cargo.env("CARGO_TARGET_DIR", dir.join("target"));
    cargo
}

/// Runs it. What it says is for nobody, unless it fails.
fn succeeds(command: &mut Command) -> Result<(), BenchError> {
    let done = command.stdin(Stdio::null()).output()?;
    match done.status.success() {
        true => Ok(()),
        false => {
            let program = PathBuf::from(command.get_program());
            Err(format!(
                "{}: {}",
                program.display(),
                String::from_utf8_lossy(&done.stderr).trim()
            )
            .into())
        }
    }
}
