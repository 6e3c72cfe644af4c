//! `weir help`: what a command is for, and the documentation's pages.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Args, CommandFactory as _};

use super::{Cli, wrong};
use crate::cli::print::out;
use crate::config;

/// The page of all settings, which is made and not kept.
const SETTINGS: &str = "settings";

/// A page of the documentation.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Its file's name, without the extension.
    pub topic: &'static str,
    /// Its text, in Markdown.
    pub text: &'static str,
}

#[derive(Debug, Args)]
pub(super) struct Help {
    /// A command, such as `check` or `policy new`, or a page of the documentation
    topic: Vec<String>,
}

impl Help {
    pub(super) fn run(self, pages: &[Page]) -> ExitCode {
        if self.topic.is_empty() {
            out!("{}\n{}", Cli::command().render_long_help(), listed(pages));
            return ExitCode::SUCCESS;
        }
        let command = command(&self.topic);
        let page = match &self.topic[..] {
            [topic] => page(&topic.to_lowercase().replace(".md", ""), pages),
            _ => None,
        };
        if command.is_none() && page.is_none() {
            let topic = self.topic.join(" ");
            return wrong(&format!(
                "found no command and no page {topic:?}: `weir help` lists both"
            ));
        }
        let both = if command.is_some() && page.is_some() { "\n" } else { "" };
        out!("{}{both}{}", command.unwrap_or_default(), page.unwrap_or_default());
        ExitCode::SUCCESS
    }
}

/// The help of the command with these words.
fn command(words: &[String]) -> Option<String> {
    // What a command is called is known only when it is built.
    let mut command = Cli::command();
    command.build();
    let mut found = &mut command;
    for word in words {
        found = found.find_subcommand_mut(word)?;
    }
    Some(found.render_long_help().to_string())
}

fn page(topic: &str, pages: &[Page]) -> Option<String> {
    if topic == SETTINGS {
        return Some(config::reference());
    }
    pages.iter().find(|page| page.topic == topic).map(|page| page.text.to_owned())
}

/// The topics, each with its page's title.
fn listed(pages: &[Page]) -> String {
    let mut all: Vec<(&str, &str)> = pages.iter().map(|page| (page.topic, title(page))).collect();
    all.push((SETTINGS, "All settings of proxy.toml"));
    all.sort_unstable();
    let width = all.iter().map(|(topic, _)| topic.len()).max().unwrap_or(0);
    let mut text = "Pages of the documentation (weir help TOPIC):\n".to_owned();
    for (topic, title) in all {
        // Writing to a `String` can't fail.
        let _ = writeln!(text, "  {topic:width$}  {title}");
    }
    text
}

fn title(page: &Page) -> &'static str {
    page.text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: [Page; 2] = [
        Page { topic: "tls", text: "# TLS and HTTP/2\n\nText.\n" },
        Page { topic: "limits", text: "# Limits\n" },
    ];

    #[test]
    fn commands_and_pages_are_found_by_their_words() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let policy_new = command(&words("policy new")).unwrap();
        assert!(policy_new.contains("weir policy new"), "{policy_new}");
        assert_eq!(command(&words("policy nw")), None);
        assert_eq!(page("tls", &PAGES).as_deref(), Some(PAGES[0].text));
        assert!(page("settings", &PAGES).unwrap().contains("# Settings"));
        assert_eq!(page("nothing", &PAGES), None);
    }

    #[test]
    fn topics_are_listed_with_their_titles() {
        let text = listed(&PAGES);
        let lines: Vec<_> = text.lines().skip(1).collect();
        let expected = [
            "  limits    Limits",
            "  settings  All settings of proxy.toml",
            "  tls       TLS and HTTP/2",
        ];
        assert_eq!(lines, expected);
    }
}
