/** The version of this program, for people and in the fields of Kubernetes. */
import { readFileSync } from 'node:fs';
import { arch } from 'node:os';

/** Version of the package. */
export const VERSION: string = (() => {
  const text = readFileSync(new URL('../package.json', import.meta.url), 'utf8');
  const { version } = JSON.parse(text) as { version: string };
  return version;
})();

/** Go's names of architectures where Node's differ. */
const ARCHITECTURES: Readonly<Record<string, string>> = { x64: 'amd64', ia32: '386' };

/**
 * Fields of Kubernetes' `version.Info`; empty where they do not apply.
 * @param version of the package, such as `0.1.0`.
 */
export function buildInfo(version: string) {
  const [major = '', minor = ''] = version.split('.');
  const architecture = arch();
  return {
    major,
    minor,
    gitVersion: `v${version}`,
    gitCommit: '',
    gitTreeState: '',
    buildDate: '',
    goVersion: '',
    compiler: `node ${process.version}`,
    platform: `${process.platform}/${ARCHITECTURES[architecture] ?? architecture}`,
  };
}
