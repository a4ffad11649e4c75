//! `lockctl man`: the manual pages, one for lockctl and one for each of its commands.

use std::path::Path;

use clap::CommandFactory;
use clap_mangen::Man;

use crate::args::Cli;
use crate::failure::{Failure, USAGE};

/// The page of lockctl, or of one of its commands.
pub(crate) fn page(command: Option<&str>) -> Result<Vec<u8>, Failure> {
    let all = described();
    let page = match command {
        None => &all,
        Some(name) => all
            .find_subcommand(name)
            .ok_or_else(|| Failure::new(USAGE, format!("there is no command `{name}`")))?,
    };
    render(&all, page)
}

/// Writes every page to `dir`, named as `man` expects it: `lockctl.1`, `lockctl-run.1` and so on.
pub(crate) fn write_all(dir: &Path) -> Result<(), Failure> {
    let all = described();
    let named = |error: std::io::Error| Failure::from(error).about(&dir.to_string_lossy());
    std::fs::create_dir_all(dir).map_err(named)?;
    for page in std::iter::once(&all).chain(all.get_subcommands()) {
        let name = page.get_display_name().unwrap_or_else(|| page.get_name());
        std::fs::write(dir.join(format!("{name}.1")), render(&all, page)?).map_err(named)?;
    }
    Ok(())
}

/// The command line, complete: each command has the global options, and its name with `lockctl-`.
fn described() -> clap::Command {
    let mut all = Cli::command().disable_help_subcommand(true);
    all.build();
    all
}

fn render(all: &clap::Command, page: &clap::Command) -> Result<Vec<u8>, Failure> {
    let version = all.get_version().unwrap_or_default();
    let mut text = Vec::new();
    Man::new(page.clone()).source(format!("lockctl {version}")).render(&mut text)?;
    if page.get_name() != all.get_name() {
        text.extend_from_slice(SEE_ALSO);
    }
    Ok(text)
}

const SEE_ALSO: &[u8] = b".SH \"SEE ALSO\"\n\\fBlockctl\\fR(1), which lists the exit statuses\n";
