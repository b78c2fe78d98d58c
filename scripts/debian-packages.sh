# Sourced by scripts that unpack packages of Debian suites without installing them: from this machine's mirror, or from
# $PORTWIDE_DEBIAN_MIRROR/debian, with apt configurations of their own in $cache/apt. apt checks signatures and checksums.
# shellcheck shell=sh disable=SC2034
cache=${PORTWIDE_KERNELS:-/var/cache/portwide-kernels}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
if [ -n "${PORTWIDE_DEBIAN_MIRROR-}" ]; then
  mirror=$PORTWIDE_DEBIAN_MIRROR/debian
else
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Label: Debian' 'Created-By: Packages' | head -n 1)
fi
mirror=${mirror:-http://deb.debian.org/debian}

# Runs a command of apt for a suite.
apt() {
  directory=$cache/apt/$1
  program=$2
  shift 2
  "$program" -qq -o "Dir::Etc::SourceList=$directory/sources.list" -o Dir::Etc::SourceParts=- \
    -o "Dir::State::Lists=$directory/lists" -o Dir::State::status=/dev/null -o "Dir::Cache=$directory" \
    -o APT::Sandbox::User=root -o Acquire::Retries=3 "$@"
}

# Gets the lists of a suite.
update() {
  mkdir -p "$cache/apt/$1/lists/partial" "$cache/apt/$1/archives/partial"
  echo "deb [signed-by=$keyring] $mirror $1 main" >"$cache/apt/$1/sources.list"
  apt "$1" apt-get -o APT::Update::Error-Mode=any update || fail "cannot get the lists of Debian $1"
}

# Unpacks packages of the suite $1 into the directory $2.
unpack() {
  (
    mkdir -p "$2"
    cd "$2"
    suite=$1
    shift 2
    for package; do
      apt "$suite" apt-get download "$package/$suite" || fail "cannot download $package of Debian $suite"
    done
    for file in *.deb; do dpkg-deb -x "$file" .; done
    rm ./*.deb
  )
}

fail() {
  echo "$1 from the mirror $mirror. PORTWIDE_DEBIAN_MIRROR names another one, such as http://deb.debian.org" >&2
  exit 1
}
