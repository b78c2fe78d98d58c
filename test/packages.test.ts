/** package.json and its lock file, as `npm ci` uses them in a fresh clone. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

interface Locked {
  readonly hasInstallScript?: boolean;
  readonly optionalDependencies?: Readonly<Record<string, string>>;
}

interface Lock {
  readonly packages: Readonly<Record<string, Locked>>;
}

type Overrides = Readonly<Record<string, string | Readonly<Record<string, string>>>>;

interface Package {
  readonly allowScripts: Readonly<Record<string, boolean>>;
  readonly devDependencies: Readonly<Record<string, string>>;
  readonly overrides: Overrides;
}

function read(file: string): string {
  return readFileSync(new URL(`../${file}`, import.meta.url), 'utf8');
}

const manifest: Package = JSON.parse(read('package.json'));

describe('packages: package.json', () => {
  const overrides = Object.values(manifest.overrides).flatMap((value) =>
    typeof value === 'string' ? [['', value]] : Object.entries(value),
  );

  it('has only overrides that npm 9 of Debian 12 can parse', () => {
    for (const [, version] of overrides) assert.match(version ?? '', /^\d+\.\d+\.\d+$/);
  });

  it('uses one version of TypeScript', () => {
    const versions = overrides.filter(([name]) => name === 'typescript').map(([, value]) => value);
    assert.ok(versions.length > 0);
    const version = manifest.devDependencies.typescript?.split('@').at(-1);
    assert.deepEqual(new Set(versions), new Set([version]));
  });
});

describe('packages: package-lock.json', () => {
  const { packages }: Lock = JSON.parse(read('package-lock.json'));

  it('has the binaries of all platforms, which npm ci requires', () => {
    const missing = Object.entries(packages).flatMap(([path, { optionalDependencies = {} }]) =>
      Object.keys(optionalDependencies).filter(
        (name) =>
          !(`${path}/node_modules/${name}` in packages || `node_modules/${name}` in packages),
      ),
    );
    assert.deepEqual(missing, []);
  });

  it('has no package with an install script that package.json neither allows nor denies', () => {
    const withScripts = Object.entries(packages)
      .filter(([, { hasInstallScript = false }]) => hasInstallScript)
      .map(([path]) => path.replace(/^.*node_modules\//, ''));
    assert.deepEqual(withScripts.toSorted(), Object.keys(manifest.allowScripts).toSorted());
  });
});
