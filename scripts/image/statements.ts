/** Files beside the image: the packages in it (SBOM), and how it was built (provenance). */
import type { LockedPackages } from './lock.ts';
import type { ImageDescription } from './oci.ts';
import { SUITE } from './packages.ts';

/** Packages of the image as CycloneDX 1.5; bundled packages are in package-lock.json. */
export function softwareBill(
  { architecture, version, epoch }: ImageDescription,
  { debian, npm }: LockedPackages,
) {
  const components = [
    ...debian.map((each) => ({
      name: each.name,
      version: each.version,
      purl: `pkg:deb/debian/${each.name}@${encodeURIComponent(each.version)}?arch=${each.architecture}&distro=${SUITE}`,
      hashes: [{ alg: 'SHA-256', content: each.sha256 }],
    })),
    ...npm.map((each) => ({
      name: each.name,
      version: each.version,
      purl: `pkg:npm/${each.name.replace('@', '%40')}@${each.version}`,
      hashes: [{ alg: 'SHA-512', content: hexadecimal(each.integrity) }],
    })),
  ];
  return {
    bomFormat: 'CycloneDX',
    specVersion: '1.5',
    version: 1,
    metadata: {
      timestamp: new Date(epoch * 1000).toISOString(),
      component: {
        type: 'container',
        name: 'portwide',
        version,
        'bom-ref': `portwide-${version}-${architecture}`,
      },
    },
    components: components.map((each) => ({ type: 'library', 'bom-ref': each.purl, ...each })),
  };
}

export interface Material {
  readonly uri: string;
  readonly digest: Readonly<Record<string, string>>;
}

/** An in-toto statement with SLSA provenance, version 1. It is not signed. */
export function provenance(
  { architecture, version, epoch }: ImageDescription,
  subject: readonly { readonly name: string; readonly digest: Readonly<Record<string, string>> }[],
  materials: readonly Material[],
  source: string,
) {
  return {
    _type: 'https://in-toto.io/Statement/v1',
    subject,
    predicateType: 'https://slsa.dev/provenance/v1',
    predicate: {
      buildDefinition: {
        buildType: `${source}/scripts/image/v1`,
        externalParameters: { architecture, version, SOURCE_DATE_EPOCH: epoch },
        resolvedDependencies: materials,
      },
      runDetails: {
        // A CI system sets its own name.
        builder: { id: process.env.PORTWIDE_BUILDER ?? `${source}/make-image` },
      },
    },
  };
}

function hexadecimal(integrity: string): string {
  return Buffer.from(integrity.replace(/^sha512-/, ''), 'base64').toString('hex');
}
