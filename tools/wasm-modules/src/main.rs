//! Turns a wasm library into modules that workerd loads as they are: `NAME.js` with the bindings,
//! `NAME_bg.wasm`, which it starts, and `NAME_piece0.js` and so on, which it imports. What wasm-bindgen's own
//! program and a bundler would do together.
//!
//! ```sh
//! wasm-modules LIBRARY.wasm FOLDER NAME
//! ```

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use wasm_bindgen_cli_support::Bindgen;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(library), Some(folder), Some(name), None) = (
        arguments.next(),
        arguments.next(),
        arguments.next(),
        arguments.next(),
    ) else {
        eprintln!("usage: wasm-modules LIBRARY.wasm FOLDER NAME");
        return ExitCode::from(64);
    };
    let (library, folder) = (PathBuf::from(library), PathBuf::from(folder));
    match convert(&library, &folder, &name.to_string_lossy()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn convert(library: &Path, folder: &Path, name: &str) -> Result<(), String> {
    Bindgen::new()
        .input_path(library)
        .out_name(name)
        // A fifth of the whole, for names that only a debugger shows: panics say file and line without.
        .remove_name_section(true)
        // `true`: as a module whose wasm is imported, not fetched.
        .module(true)
        .and_then(|bindgen| bindgen.typescript(false).generate(folder))
        .map_err(|error| format!("{}: {error:#}", library.display()))?;
    let script = folder.join(format!("{name}.js"));
    rewrite(&script, folder, name)
        .map_err(|problem| format!("{}: {problem}", script.display()))
}

/// Makes the bindings loadable as they are: workerd takes an import of wasm for the module itself
/// without the proposal's keyword, and pieces of JavaScript that crates bring along lie beside the
/// bindings, under names that do not change with every version of those crates.
fn rewrite(script: &Path, folder: &Path, name: &str) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let bindings = std::fs::read_to_string(script).map_err(told)?;
    let mut changed = bindings.replace("import source ", "import ");
    if changed == bindings {
        return Err("does not import its wasm as this program knows it".into());
    }
    let mut pieces = 0;
    while let Some(start) = changed.find("'./snippets/") {
        let path = &changed[start + 1..];
        let path = &path[..path.find('\'').ok_or("an import has no end")?];
        let piece = format!("{name}_piece{pieces}.js");
        std::fs::rename(folder.join(path), folder.join(&piece)).map_err(told)?;
        changed = changed.replace(path, &format!("./{piece}"));
        pieces += 1;
    }
    if pieces > 0 {
        std::fs::remove_dir_all(folder.join("snippets")).map_err(told)?;
    }
    std::fs::write(script, changed).map_err(told)
}
