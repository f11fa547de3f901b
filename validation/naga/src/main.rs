//! Translates SPIR-V from standard input by naga, as wgpu does: `naga-translate msl 2.3`, `naga-translate wgsl`.

use std::io::{Read, Write};
use std::process::ExitCode;

use naga::back::{msl, wgsl};
use naga::valid::{Capabilities, ValidationFlags, Validator};

fn translate(arguments: &[String]) -> Result<String, String> {
    let mut binary = Vec::new();
    std::io::stdin().read_to_end(&mut binary).map_err(|error| error.to_string())?;
    let options = naga::front::spv::Options { adjust_coordinate_space: false, strict_capabilities: true, block_ctx_dump_prefix: None };
    let module = naga::front::spv::parse_u8_slice(&binary, &options).map_err(|error| error.emit_to_string(""))?;
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    let info = validator.validate(&module).map_err(|error| error.emit_to_string(""))?;
    match arguments {
        [language] if language == "wgsl" => {
            wgsl::write_string(&module, &info, wgsl::WriterFlags::EXPLICIT_TYPES).map_err(|error| error.to_string())
        }
        [language, version] if language == "msl" => {
            let (major, minor) = version.split_once('.').ok_or("the version is a number like 2.3")?;
            let number = |text: &str| text.parse::<u8>().map_err(|error| error.to_string());
            // As for spirograd's modules, whose loops and accesses wgpu does not check.
            let options = msl::Options { lang_version: (number(major)?, number(minor)?), force_loop_bounding: false, ..Default::default() };
            let written = msl::write_string(&module, &info, &options, &msl::PipelineOptions::default());
            written.map(|(text, _)| text).map_err(|error| error.to_string())
        }
        _ => Err("usage: naga-translate msl VERSION | naga-translate wgsl".to_string()),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match translate(&arguments).and_then(|text| std::io::stdout().write_all(text.as_bytes()).map_err(|error| error.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
