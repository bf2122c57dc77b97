#!/usr/bin/env python3
"""tests/packaging/recipes.py TOP: checks the recipes of packaging/ against configure.ac and
.ci/setup.sh: the version, the dependencies, the commands.
"""

import ast
import pathlib
import re
import sys

# Debian package: its names in packaging/debian, Spack and EasyBuild. None: something else of the
# recipe brings it, such as a toolchain.
NAMES = {
    "gcc": (None, "c", None),
    "libc6-dev": (None, None, None),
    "make": (None, None, None),
    "autoconf": (None, "autoconf", None),
    "automake": (None, "automake", None),
    "pkg-config": ("pkg-config", "pkgconfig", "pkgconf"),
    "libopenmpi-dev": ("libopenmpi-dev", "mpi", None),
    "openmpi-bin": ("openmpi-bin", "mpi", None),
    "libhdf5-openmpi-dev": ("libhdf5-openmpi-dev", "hdf5", "HDF5"),
    "libhwloc-dev": ("libhwloc-dev", "hwloc", "hwloc"),
    "libopenblas-dev": ("libopenblas-dev", "openblas", "OpenBLAS"),
    "libyaml-dev": ("libyaml-dev", "libyaml", "libyaml"),
    "libjansson-dev": ("libjansson-dev", "jansson", "Jansson"),
    "libpcre2-dev": ("libpcre2-dev", "pcre2", "PCRE2"),
    "libutf8proc-dev": ("libutf8proc-dev", "utf8proc", "utf8proc"),
    "zlib1g-dev": ("zlib1g-dev", "zlib-api", "zlib"),
    "libzstd-dev": ("libzstd-dev", "zstd", "zstd"),
    "libpapi-dev": ("libpapi-dev", "papi", "PAPI"),
}
# Tools, what only GPUs need, and what runs the scripts of tools/.
BESIDE = ({"debhelper-compat"}, {"cxx", "nccl", "python", "py-jinja2"},
          {"Python", "Python-bundle-PyPI"})

bad = []


def equal(what, got, wanted):
    if got != wanted:
        bad.append(f"{what}: {got}, not {wanted}")


def find(pattern, text):
    found = re.search(pattern, text, re.M | re.S)
    return found[1] if found else None


def debian_packages(control):
    listed = find(r"^Build-Depends:(.*?)^\S", control) or ""
    return {item.split()[0] for item in listed.split(",")}


def spack_packages(recipe):
    calls = (node for node in ast.walk(ast.parse(recipe)) if isinstance(node, ast.Call))
    named = (call for call in calls if getattr(call.func, "id", "") == "depends_on")
    return {re.match(r"[\w-]+", call.args[0].value)[0] for call in named}


def easyconfig(text):
    values = {"SOURCELOWER_TAR_GZ": ""}
    exec(text, values)
    return values


def commands(recipe, lines):
    """Commands of an image's recipe, in order, that do not only move files around."""
    text = " && ".join(re.findall(lines, recipe, re.M | re.S)).replace("\\\n", " ")
    words = (" ".join(command.split()) for command in re.split(r"&&|\n", text))
    return [word for word in words if re.match(r"apt-get|cp|dpkg", word)]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    top = pathlib.Path(sys.argv[1])
    folder = top / "packaging"

    def read(path):
        return (top / path).read_text(encoding="utf-8")

    version = find(r"^AC_INIT\(\[sluice\], \[(.*?)\]\)", read("configure.ac"))
    spack = read("packaging/spack/package.py")
    recipes = list(folder.glob("easybuild/*.eb"))
    equal("easyconfigs", len(recipes), 1)
    config = easyconfig(recipes[0].read_text(encoding="utf-8"))
    chain = config["toolchain"]
    equal("easyconfig", config["version"], version)
    equal("its name", recipes[0].stem, f"Sluice-{version}-{chain['name']}-{chain['version']}")
    changelog = read("packaging/debian/changelog")
    equal("debian/changelog", find(r"\Asluice \((.*?)\)", changelog), version)
    equal("spack/package.py", find(r'^    version\("(.*?)"\)', spack), version)
    equal("CITATION.cff", find(r"^version: (\S+)", read("CITATION.cff")), version)

    wanted = find(r'^packages_build="(.*?)"', read(".ci/setup.sh")).replace("\\\n", "").split()
    equal("packages that this test knows", set(NAMES), set(wanted))
    got = (
        debian_packages(read("packaging/debian/control")),
        spack_packages(spack),
        {name for name, *_ in config["dependencies"] + config["builddependencies"]},
    )
    for i, what in enumerate(("debian/control", "spack/package.py", recipes[0].name)):
        names = {NAMES[package][i] for package in wanted if package in NAMES} - {None}
        equal(f"dependencies of {what}", sorted(got[i]), sorted(names | BESIDE[i]))

    docker, apptainer = read("packaging/Dockerfile"), read("packaging/apptainer.def")
    steps = commands(docker, r"^RUN (.*?[^\\])$")
    equal("commands of apptainer.def", commands(apptainer, r"^%post\n((?: .*?\n)+)"), steps)
    equal("apt-get in Dockerfile", sum("apt-get" in step for step in steps), 5)

    for line in bad:
        print(line)
    sys.exit(1 if bad else 0)


main()
