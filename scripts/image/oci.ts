/** An image as an archive in the OCI image layout. */
import { gzip, sha256 } from '../dist/archive.ts';
import type { Architecture } from '../dist/npm-packages.ts';
import type { Layer } from './layers.ts';

import { type Entry, writeTar } from './tar.ts';

export interface ImageDescription {
  readonly architecture: Architecture;
  readonly version: string;
  /** The version, and what sets the image apart. */
  readonly tag: string;
  /** Git commit. */
  readonly revision: string;
  /** Unix time in seconds. */
  readonly epoch: number;
}

export interface Image {
  /** The OCI archive. */
  readonly archive: Buffer;
  /** Digest of the manifest, by which registries know the image. */
  readonly digest: string;
  readonly sizes: readonly LayerSize[];
}

export interface LayerSize {
  readonly name: string;
  /** Bytes of the tar archive. */
  readonly uncompressed: number;
  readonly compressed: number;
}

interface Descriptor {
  readonly mediaType: string;
  readonly digest: string;
  readonly size: number;
}

const TYPE = 'application/vnd.oci.image';

export async function makeImage(
  layers: readonly Layer[],
  description: ImageDescription,
): Promise<Image> {
  const { architecture, tag, epoch } = description;
  const created = new Date(epoch * 1000).toISOString().replace('.000Z', 'Z');
  const packed = await Promise.all(
    layers.map(async ({ name, entries }) => {
      const tar = writeTar(entries);
      return { name, diffId: `sha256:${sha256(tar)}`, size: tar.length, data: await gzip(tar) };
    }),
  );
  const blobs: Entry[] = [];
  const blob = (mediaType: string, data: Buffer): Descriptor => {
    const digest = sha256(data);
    blobs.push({ path: `blobs/sha256/${digest}`, mode: 0o644, mtime: epoch, data });
    return { mediaType, digest: `sha256:${digest}`, size: data.length };
  };
  const config = blob(
    `${TYPE}.config.v1+json`,
    json({
      created,
      architecture,
      os: 'linux',
      config: {
        // Root: the kernel gives capabilities to another user's process only through file
        // capabilities, which do not work with allowPrivilegeEscalation: false. The DaemonSet drops
        // all but NET_ADMIN and NET_RAW.
        User: '0:0',
        Env: ['PATH=/usr/sbin:/usr/bin'],
        Entrypoint: ['/opt/portwide/portwide'],
        WorkingDir: '/',
        Labels: labels(description, created),
      },
      rootfs: { type: 'layers', diff_ids: packed.map(({ diffId }) => diffId) },
      history: packed.map(({ name }) => ({ created, created_by: name })),
    }),
  );
  const manifest = blob(
    `${TYPE}.manifest.v1+json`,
    json({
      schemaVersion: 2,
      mediaType: `${TYPE}.manifest.v1+json`,
      config,
      layers: packed.map(({ data }) => blob(`${TYPE}.layer.v1.tar+gzip`, data)),
    }),
  );
  const reference = {
    ...manifest,
    platform: { architecture, os: 'linux' },
    // containerd names the imported image by the first annotation, podman by the second.
    annotations: {
      'io.containerd.image.name': `localhost/portwide:${tag}`,
      'org.opencontainers.image.ref.name': tag,
    },
  };
  const index = json({
    schemaVersion: 2,
    mediaType: `${TYPE}.index.v1+json`,
    manifests: [reference],
  });
  const file = { mode: 0o644, mtime: epoch };
  const archive = writeTar([
    { path: 'oci-layout', ...file, data: json({ imageLayoutVersion: '1.0.0' }) },
    { path: 'index.json', ...file, data: index },
    { path: 'blobs', mode: 0o755, mtime: epoch },
    { path: 'blobs/sha256', mode: 0o755, mtime: epoch },
    ...blobs,
  ]);
  const sizes = packed.map(({ name, size, data }) => ({
    name,
    uncompressed: size,
    compressed: data.length,
  }));
  return { archive, digest: manifest.digest, sizes };
}

function labels({ version, revision }: ImageDescription, created: string) {
  const values = {
    title: 'portwide',
    version,
    revision,
    source: SOURCE,
    // The agent, Node.js with koffi, and Debian's packages; the files in the image have the texts.
    licenses: 'Apache-2.0 AND MIT AND GPL-2.0-or-later AND LGPL-2.1-or-later',
    created,
  };
  return Object.fromEntries(
    Object.entries(values).map(([key, value]) => [`org.opencontainers.image.${key}`, value]),
  );
}

/** Where the sources are published; a placeholder until then, as in deploy/krew/portwide.yaml. */
export const SOURCE = process.env.PORTWIDE_SOURCE ?? 'https://portwide.invalid';

function json(value: unknown): Buffer {
  return Buffer.from(JSON.stringify(value));
}
