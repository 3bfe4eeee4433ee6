"""Containers and recipes: linted, in step with pyproject.toml, their steps run where that needs no container engine."""

import copy
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

import dpmpi
from dpmpi.runtime.flag_parser import make_parser

ROOT = Path(dpmpi.__file__).parents[1]
CONTAINERFILE = ROOT / "launch/Containerfile"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
JOIN_FLAGS = {"--rank", "--of", "--meet", "--ports"}


def instructions():
    """(instruction, text) of the Containerfile, lines joined."""
    text = re.sub(r"\\\n\s*", "", "\n".join(line for line in CONTAINERFILE.read_text().splitlines() if line[:1] != "#"))
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line]


def test_the_containerfile_is_linted():
    beside = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([beside, CONTAINERFILE], capture_output=True, text=True, check=False, timeout=60)
    assert (found.returncode, found.stdout) == (0, ""), found.stdout


def test_the_image_is_pinned_staged_and_not_root():
    words = instructions()
    bases = [text.split()[0] for name, text in words if name == "FROM"]
    assert len(bases) == 2
    assert all(re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base) for base in bases)
    assert ("USER", "1000") in words
    assert [name for name, _ in words].index("USER") < [name for name, _ in words].index("ENTRYPOINT")
    assert ("HEALTHCHECK", 'CMD ["dpmpi", "--version"]') in words


@pytest.mark.slow
def test_the_steps_of_the_containerfile(tmp_path):
    """Each RUN, in a folder that stands for the image: a wheel, an environment, the health check, a run."""
    source = tmp_path / "src"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "dpmpi", source / "dpmpi", ignore=shutil.ignore_patterns("__pycache__"))
    steps = [text for name, text in instructions() if name == "RUN"]
    assert len(steps) == 2
    for step in steps:
        here = step.replace("/wheels", f"{tmp_path}/wheels").replace("/opt/dpmpi", f"{tmp_path}/opt")
        here = re.sub(r"&& (useradd|install) [^&]*", "", here).replace("${EXTRAS}", "mpich")
        subprocess.run(["sh", "-c", here], check=True, cwd=source, timeout=300)
    dpmpi_command = tmp_path / "opt/bin/dpmpi"
    told = subprocess.run([dpmpi_command, "--version"], check=True, capture_output=True, text=True, timeout=60)
    assert told.stdout == f"dpmpi {dpmpi.__version__}\n"
    run = [tmp_path / "opt/bin/python", "-m", "dpmpi.run", "--loopback", "3", "--epsilon", "5", "--rounds", "5"]
    subprocess.run([*run, "--out", tmp_path / "run"], check=True, cwd=tmp_path, timeout=60, capture_output=True)


def test_the_parties_of_the_compose_file():
    told = yaml.safe_load((ROOT / "launch/compose.yaml").read_text())
    run = {flag for action in make_parser("run", "")._actions for flag in action.option_strings}
    for rank, (site, service) in enumerate(told["services"].items()):
        words = service["command"].split()
        assert words[:5] == ["join", "--rank", str(rank), "--of", "3"]
        assert {word for word in words if word.startswith("--")} <= run | JOIN_FLAGS
        assert service["image"] == f"dpmpi:{dpmpi.__version__}"
        assert service["user"] == "1000"
        assert service["volumes"] == [f"./{site}:/data"]
        assert all(site in network for network in service["networks"])
    assert len(told["networks"]) == 3
    pairs = [
        {site for site, one in told["services"].items() if network in one["networks"]} for network in told["networks"]
    ]
    assert all(len(pair) == 2 for pair in pairs)


def needed(text):
    """name -> least version of what a requirement, or a recipe's line, asks for."""
    found = re.match(r"([a-z0-9-]+)\s*>=\s*([\d.]+)", text)
    return found.groups() if found else None


WANTED = dict(map(needed, PROJECT["dependencies"]))


def test_the_conda_recipe_asks_for_what_the_project_asks_for():
    recipe = yaml.safe_load((ROOT / "launch/conda-recipe.yaml").read_text())
    assert recipe["context"]["version"] == dpmpi.__version__
    run = dict(map(needed, recipe["requirements"]["run"]))
    assert run.pop("python") == PROJECT["requires-python"].removeprefix(">=")
    assert run == WANTED
    assert recipe["build"]["python"]["entry_points"] == [f"dpmpi = {PROJECT['scripts']['dpmpi']}"]


def test_the_spack_recipe_asks_for_what_the_project_asks_for():
    text = (ROOT / "launch/spack-package.py").read_text()
    found = dict(re.findall(r'depends_on\("py-([a-z0-9-]+)@([\d.]+):", type=\("build", "run"\)\)', text))
    whole = {name: [int(part) for part in least.split(".")] for name, least in found.items()}
    expected = {name: [int(part) for part in least.split(".")] for name, least in WANTED.items()}
    assert whole.keys() == expected.keys()
    for name, least in expected.items():
        assert least[: len(whole[name])] == whole[name], name
    assert f'version("{dpmpi.__version__}"' in text
    compile(text, "package.py", "exec")


def test_the_apptainer_image_is_that_of_the_containerfile(tmp_path):
    text = (ROOT / "launch/apptainer.def").read_text()
    assert "Bootstrap: docker-archive\nFrom: image.tar\n" in text
    assert f"dpmpi:{dpmpi.__version__}" in text
    commands = re.findall(r"^    /opt/dpmpi/bin/(.+)$", text, flags=re.MULTILINE)
    assert commands[0] == "dpmpi --version"
    words = [sys.executable, *commands[1].split()[1:-1], tmp_path / "run"]
    done = subprocess.run(words, capture_output=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


MPI_JOB = {
    "slotsPerWorker": int,
    "sshAuthMountPath": str,
    "mpiImplementation": str,
    "runLauncherAsWorker": bool,
    "launcherCreationPolicy": str,
    "runPolicy": {"cleanPodPolicy", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "suspend"},
    "mpiReplicaSpecs": {"Launcher", "Worker"},
}
"""The fields of a `spec` of kubeflow.org/v2beta1, MPIJob, as its documentation names them: no package index has its
schema. What is inside the pods is checked against that of Kubernetes."""


def test_the_mpi_job_has_fields_that_the_operator_knows():
    [job] = yaml.safe_load_all((ROOT / "launch/kubernetes.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    spec = job["spec"]
    assert spec.keys() <= MPI_JOB.keys()
    for name, kind in MPI_JOB.items():
        if name in spec:
            assert spec[name].keys() <= kind if isinstance(kind, set) else isinstance(spec[name], kind), name
    assert spec["mpiImplementation"] in ("OpenMPI", "Intel", "MPICH")
    assert spec["runPolicy"]["cleanPodPolicy"] in ("Running", "All", "None")
    ranks = 0
    for role, replica in spec["mpiReplicaSpecs"].items():
        assert replica.keys() <= {"replicas", "restartPolicy", "template"}
        assert replica["restartPolicy"] in ("Never", "OnFailure")
        pod = replica["template"]["spec"]
        assert pod.keys() <= {"containers", "volumes"}
        assert all(one["image"].endswith(f"dpmpi:{dpmpi.__version__}") for one in pod["containers"])
        ranks += replica["replicas"] * spec["slotsPerWorker"] if role == "Worker" else 0
    [script] = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["args"]
    assert f"--ranks {ranks}" in script
    assert f"-n {ranks}" in script


def check_pod(spec):
    """Raise `ValidationError` unless this is a pod by Kubernetes' own schema, without a field that it does not know."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("role", ["Launcher", "Worker"])
def test_the_pods_of_the_mpi_job_fit_the_schema_of_kubernetes(role):
    [job] = yaml.safe_load_all((ROOT / "launch/kubernetes.yaml").read_text())
    spec = job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]
    check_pod(spec)
    for wrong in ({"volumeMount": []}, {"command": "sh"}, {"resources": {"limit": {}}}, {"image": None, "name": 5}):
        planted = copy.deepcopy(spec)
        planted["containers"][0] |= wrong
        with pytest.raises(kubernetes_validate.ValidationError):
            check_pod(planted)
