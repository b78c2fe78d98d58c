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

interface Package {
  readonly allowScripts: Readonly<Record<string, boolean>>;
}

function read(file: string): string {
  return readFileSync(new URL(`../${file}`, import.meta.url), 'utf8');
}

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
    const { allowScripts }: Package = JSON.parse(read('package.json'));
    const withScripts = Object.entries(packages)
      .filter(([, { hasInstallScript = false }]) => hasInstallScript)
      .map(([path]) => path.replace(/^.*node_modules\//, ''));
    assert.deepEqual(withScripts.toSorted(), Object.keys(allowScripts).toSorted());
  });
});
