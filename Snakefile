# A job for each training of a profile, then one that draws everything from them: docs/clusters.md says how.
#     snakemake --cores 2 --config profile=smoke seeds=0,1
# Snakemake has an environment of its own; the library is in .venv (make .venv/ready).
import json
import shlex
import subprocess

ATTNCONV = ".venv/bin/attnconv"
PROFILE = config.get("profile", "quick")
PROFILE_FILE = f"notebooks/profiles/{PROFILE}.yaml"
DATA = f"--data {shlex.quote(str(config['data']))}" if "data" in config else ""
MARKS = f"outputs/snakemake/{PROFILE}"  # what is done, for Snakemake; run folders are where attnconv leaves them

# The library knows a profile's models and seeds, and which model another one starts from.
ASK = """import json, sys; from attnconv.config import PRESETS; from companion.profile import load_profile; profile = load_profile(sys.argv[1])
starts = {name: preset.start for name, preset in PRESETS.items()}
print(json.dumps([profile.runs, profile.seeds, starts]))"""
told = subprocess.run([".venv/bin/python", "-c", ASK, PROFILE_FILE], check=True, stdout=subprocess.PIPE).stdout
PRESETS, SEEDS, START_FROM = json.loads(told)
SEEDS = str(config["seeds"]).split(",") if "seeds" in config else SEEDS


rule reproduce:  # it has no output: attnconv itself knows what is up to date
    input: expand(MARKS + "/{preset}-seed{seed}", preset=PRESETS, seed=SEEDS)
    threads: config.get("threads", 1)
    resources: gpu=config.get("gpus", 0), mem_mb=config.get("mem_mb", 8000)
    shell: "{ATTNCONV} reproduce --profile {PROFILE} {DATA} --jobs {threads}"


def start(wildcards):
    first = START_FROM[wildcards.preset]
    return f"{MARKS}/{first}-seed{wildcards.seed}" if first else []


rule train:  # it resumes a training that was stopped, and returns at once if it is finished
    input: PROFILE_FILE, start
    output: touch(MARKS + "/{preset}-seed{seed}")
    log: MARKS + "/{preset}-seed{seed}.log"
    params: DATA
    threads: config.get("threads", 1)
    resources: gpu=config.get("gpus", 0), mem_mb=config.get("mem_mb", 8000)
    wildcard_constraints: seed=r"\d+"
    shell: "{ATTNCONV} train {wildcards.preset} --profile {PROFILE} --seed {wildcards.seed} {params} >> {log} 2>&1"
