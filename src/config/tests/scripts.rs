//! `[store] scripts`: which files are read, what they may be called, and that they are watched.

use std::fs;

use super::*;

fn parse_in(folder: &Path, store: &str) -> Result<Config, ConfigErrors> {
    Config::parse(&format!("[store]\n{store}\n{MINIMAL}"), &folder.join("proxy.toml"))
}

#[test]
fn the_lua_files_of_a_folder_are_read_and_watched_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let lua = folder.path().join("lua");
    fs::create_dir(&lua).unwrap();
    for (name, text) in [
        ("b.lua", "two"),
        ("a.lua", "one"),
        ("README.md", "no"),
        (".#a.lua", "an editor's"),
        ("a.lua~", "an editor's"),
    ] {
        fs::write(lua.join(name), text).unwrap();
    }
    let config =
        parse_in(folder.path(), "scripts = \"lua\"").unwrap_or_else(|errors| panic!("{errors}"));
    let read: Vec<_> =
        config.scripts.iter().map(|script| (script.name.as_str(), script.text.as_str())).collect();
    assert_eq!(read, [("a", "one"), ("b", "two")]);
    assert_eq!(&*config.policies[0].scripts, ["a", "b"]);
    for watch in [
        Watch::folder(&lua),
        Watch::read(lua.join("a.lua"), b"one"),
        Watch::read(lua.join("b.lua"), b"two"),
    ] {
        assert!(config.watched.contains(&watch), "{watch:?}");
    }
    assert_eq!(good(MINIMAL).scripts, []);
}

#[test]
fn an_invalid_script_is_an_error_that_names_the_file() {
    for (name, text, found, expected) in [
        ("Mine.lua", "x", "the name \"Mine\"", "expected 1 to 64 of a-z 0-9 _"),
        ("my-own.lua", "x", "the name \"my-own\"", "a letter first"),
        ("gcra.lua", "x", "the name `gcra`", "expected a name that no algorithm of Weir has"),
        ("script.lua", "x", "the name `script`", "expected a name that"),
        (
            "large.lua",
            &"x".repeat((64 << 10) + 1),
            "it has more than 64KiB",
            "expected a Lua file of at most 64KiB",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("lua")).unwrap();
        fs::write(folder.path().join("lua").join(name), text).unwrap();
        let errors = parse_in(folder.path(), "scripts = \"lua\"").expect_err(name);
        let parts = [&format!("lua/{name}: {found}"), expected, "proxy.toml:2:11"];
        assert!(parts.iter().all(|part| errors.text.contains(part)), "{errors}");
        // There it will be mended.
        assert!(
            errors.watched.iter().any(|watch| watch.path().ends_with("lua")),
            "{:?}",
            errors.watched
        );
    }
}

#[test]
fn the_folder_and_the_number_of_its_files_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let errors = parse_in(folder.path(), "scripts = \"lua\"").unwrap_err();
    assert!(errors.text.contains("lua (No such file or directory)\n"), "{errors}");
    assert!(errors.text.contains("expected the path of a folder with Lua files"), "{errors}");
    assert!(
        parse_in(folder.path(), "scripts = 7").unwrap_err().text.contains("store.scripts: found 7")
    );
    fs::create_dir(folder.path().join("lua")).unwrap();
    for number in 0..65 {
        fs::write(folder.path().join(format!("lua/s{number}.lua")), "").unwrap();
    }
    let errors = parse_in(folder.path(), "scripts = \"lua\"").unwrap_err();
    assert!(
        errors.text.contains("found 65 scripts\n") && errors.text.contains("expected at most 64"),
        "{errors}"
    );
}
