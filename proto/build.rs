//! Compiles the contracts in pure Rust: nobody needs to install protoc.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "dra/v1/dra.proto",
        "dra/v1beta1/dra.proto",
        "health/v1alpha1/health.proto",
        "health/v1/health.proto",
        "registration/v1/registration.proto",
        "runner/v1/runner.proto",
    ];
    for file in files {
        println!("cargo:rerun-if-changed=proto/{file}");
        let descriptors = protox::compile([file], ["proto"])?;
        tonic_prost_build::configure().compile_fds(descriptors)?;
    }
    println!("cargo:rerun-if-changed=past");
    if std::env::var_os("CARGO_FEATURE_PAST").is_some() {
        // Of the same package as today's, so into a folder of its own.
        let folder = Path::new(&std::env::var("OUT_DIR")?).join("past");
        std::fs::create_dir_all(&folder)?;
        let descriptors = protox::compile(["runner-1.proto"], ["past"])?;
        tonic_prost_build::configure().out_dir(folder).compile_fds(descriptors)?;
    }
    Ok(())
}
